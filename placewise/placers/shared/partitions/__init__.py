"""From parts of a graph, and lines of its ops, to placements that keep the rules."""
