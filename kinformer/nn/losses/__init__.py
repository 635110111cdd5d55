"""Losses: formulas for targets, for several exits at once, for compressed memories and for policies."""
