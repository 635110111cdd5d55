"""Patterns: sets of keys that each query reads. Combine them with & (both), | (either), ~ and Heads."""
