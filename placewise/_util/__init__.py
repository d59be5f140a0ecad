"""Small helpers that know nothing of graphs: units, text, regular expressions, safe files."""
