"""Projections from hidden states to queries, keys and values."""
