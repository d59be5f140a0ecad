"""Local search for throughput: groups that move as one, loads of a pipeline, rounds of annealing."""
