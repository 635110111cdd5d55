"""Losses with arithmetic of their own: for targets, for several exits at once, and for compressed memories."""
