"""What every service runs on: the fold over `LOG`, appending, effects, the broker, dead letters, clock, telemetry."""
