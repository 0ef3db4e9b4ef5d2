"""Agent: runs workloads on one node, and fences itself."""
