"""Latency in `operator` and `subgraph` execution as CP-SAT models."""
