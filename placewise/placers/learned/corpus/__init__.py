"""Training one policy on many problems: tasks, workers, and the synchronous trainer."""
