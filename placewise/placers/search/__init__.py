"""Local search for throughput: loads kept up to date while groups of ops move, moves, and annealing."""
