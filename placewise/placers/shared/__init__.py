"""Code that several methods share. Nothing here imports a method."""
