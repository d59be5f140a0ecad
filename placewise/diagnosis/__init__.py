"""What of Placewise works on this machine: every path that it allows is run once, on tiny models."""
