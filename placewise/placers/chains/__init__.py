"""The best chain of stages: the dynamic program over ideals, and over the prefixes of one line."""
