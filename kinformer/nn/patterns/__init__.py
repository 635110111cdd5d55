"""Patterns: which positions may read which. One file per pattern; compose them with & | ~ and Heads."""
