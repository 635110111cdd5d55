"""Losses whose arithmetic is their own: of targets, of several exits at once, of what a compressed memory has lost."""
