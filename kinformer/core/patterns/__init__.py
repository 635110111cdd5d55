"""Patterns that the core contracts and the executors use. All other patterns are in nn/patterns."""
