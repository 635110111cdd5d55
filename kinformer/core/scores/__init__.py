"""Product, the default score of the core and its executors; all other scores are in nn/scores."""
