"""Figures of ideas: one file per figure, with a function `draw` that yields its pictures and diagrams."""
