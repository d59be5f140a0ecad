"""Training in many workers: controllers and workers of one problem, workers of a corpus, and the pools of both."""
