"""Norms: what keeps the scale of hidden states."""
