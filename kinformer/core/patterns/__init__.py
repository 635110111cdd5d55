"""The patterns that the contracts of core and the executors name. All others are in nn/patterns."""
