"""Comparison of members: equal numbers of parameters, samples of text, and cost against row length."""
