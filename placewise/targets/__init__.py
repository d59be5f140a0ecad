"""Plans for a tool that will run them: the search goes through what that tool can express, and through nothing else."""
