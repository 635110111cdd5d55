"""Biases: what is added to a score, or multiplied into it, because of where query and key stand."""
