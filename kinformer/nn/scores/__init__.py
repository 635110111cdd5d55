"""Scores: methods to score a pair of query and key."""
