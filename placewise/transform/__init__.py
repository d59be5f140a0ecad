"""Transforms: Graph → Graph, each a pure function that notes itself in the graph's source."""
