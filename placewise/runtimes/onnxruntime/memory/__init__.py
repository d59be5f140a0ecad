"""What a session of ONNX Runtime takes, by its own rules, before it is opened: kernels, layouts, buffers, chunks.

The judge counts what is alive (`simulate/memory.py`); this is for the prediction beside a real run.
"""
