"""Parity: the parts against what implementations that nobody here wrote compute."""
