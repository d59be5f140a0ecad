"""The judge: what a placement takes, and how much memory it needs."""
