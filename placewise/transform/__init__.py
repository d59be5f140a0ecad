"""Transforms map a graph to a graph; each is a pure function that records itself in the graph's source."""
