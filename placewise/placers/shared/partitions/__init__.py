"""From parts of a graph, and orders of its ops, to placements that keep the rules."""
