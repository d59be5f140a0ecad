"""OpenVINO IR → Graph."""

from placewise.readers.openvino.reader import looks_like_openvino, read_openvino

__all__ = ["looks_like_openvino", "read_openvino"]
