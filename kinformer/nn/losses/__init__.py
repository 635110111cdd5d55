"""Losses with arithmetic of their own: for targets, several exits at once, and compressed memories."""
