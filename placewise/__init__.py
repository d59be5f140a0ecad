"""Placewise."""
