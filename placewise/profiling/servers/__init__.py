"""Servers that run a whole model on one device under its runtime's own profiler, in a worker process."""
