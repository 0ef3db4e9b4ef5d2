"""Simulator: every service over a bus and a clock in memory, under seeded faults, and the laws that must hold."""
