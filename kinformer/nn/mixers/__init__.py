"""Mixers, which pass information between tokens without attention."""
