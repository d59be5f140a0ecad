"""Read llama.cpp's model files: the header and the table of tensors, never the weights."""

from placewise.readers.gguf.reader import read_gguf

__all__ = ["read_gguf"]
