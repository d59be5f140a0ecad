"""Parts of a graph and lines of its ops: what cuts, experts and floors make placements from."""
