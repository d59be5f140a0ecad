"""What several methods need. Nothing here imports a method."""
