"""Matcher: who gets which GPUs at what price, and why a job waits."""
