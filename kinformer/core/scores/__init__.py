"""The default score of core and the executors. All others are in nn/scores."""
