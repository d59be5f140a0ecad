"""One policy trained on many problems: what it is told of each, who learns on it, and how it all comes together."""
