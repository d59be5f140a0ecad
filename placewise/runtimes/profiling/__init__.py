"""Servers that run a whole model on one device with the runtime's own profiler, in a worker process."""
