"""ONNX Runtime as a dataflow machine: a worker per device, pieces as sub-models, tensors in shared memory."""
