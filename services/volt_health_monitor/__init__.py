"""Health monitor: who is alive, unknown, lost or quarantined, and what heartbeats cover."""
