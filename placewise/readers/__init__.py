"""Readers: a model file → a Graph, or a whole Problem if the file describes one."""
