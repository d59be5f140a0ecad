"""Parts of a placement as problems of their own, for throughput: which to free, how to cut them out, and the rounds."""
