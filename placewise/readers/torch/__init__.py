"""PyTorch: modules with example inputs, exported programs and ``.pt2`` archives → graphs."""

from placewise.readers.torch.file import looks_like_pt2, read_pt2

__all__ = ["looks_like_pt2", "read_pt2"]
