"""Distributed training: controllers roll out and learn, workers measure, one server owns the parameters."""
