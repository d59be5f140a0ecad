"""Reports: a result as text for people."""
