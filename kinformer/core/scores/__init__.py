"""The score that core and the executors take as the default. All others are in nn/scores."""
