"""Schedules as constraint programs: latency in each of the three executions, whole or in windows."""
