"""Comparison of members (named models): parameters, samples of text, and cost against row length."""
