"""Predicts what a session of ONNX Runtime needs by its own rules: kernels, layouts, buffers and chunks of the arena.

The judge counts live tensors (`simulate/judge/memory.py`); this prediction is shown beside a real run.
"""
