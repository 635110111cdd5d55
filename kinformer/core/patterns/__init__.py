"""The patterns that the contracts of core and the executors use. All others are in nn/patterns."""
