"""Readers: a file → a Graph, or a whole Problem where the file says more. Suffix and content decide the format."""
