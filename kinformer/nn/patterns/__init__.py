"""Patterns: sets of keys that each query reads, one per file. Compose them with & | ~ and Heads."""
