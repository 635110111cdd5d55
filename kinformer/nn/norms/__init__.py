"""Norms, which keep the scale of hidden states."""
