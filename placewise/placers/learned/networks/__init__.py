"""The networks of policies: what needs torch."""
