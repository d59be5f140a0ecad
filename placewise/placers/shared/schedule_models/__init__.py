"""Schedules as constraint programs for CP-SAT: latency in `operator` and `subgraph` execution."""
