"""auto: what it runs, in which order, for how long, and what it remembers."""
