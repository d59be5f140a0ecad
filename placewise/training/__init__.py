"""Train a policy on one problem, or on a corpus of problems."""
