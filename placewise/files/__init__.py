"""Placewise's own files: each has a format name, a version and a published JSON Schema (docs/formats.md)."""
