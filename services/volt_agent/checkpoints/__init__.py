"""Checkpoints on a node: stored as a workload finishes them, restored when all ranks have, removed when superseded."""
