"""Runnable measurements. They print; no test asserts a time."""
