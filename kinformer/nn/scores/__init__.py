"""Scores: ways to compute the attention score of a query and a key, before the softmax."""
