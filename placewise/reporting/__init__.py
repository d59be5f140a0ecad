"""Results as text, tables and pages for people."""
