"""Scores: how a query and a key are multiplied."""
