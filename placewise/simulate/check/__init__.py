"""The checker: which rules a placement breaks, computed apart from the judge."""
