"""The networks of policies. Everything here needs torch."""
