"""Provisioner: forms, grows, shrinks, heals, resumes and releases clusters."""
