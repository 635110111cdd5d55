"""Norms, which bring the features of each token to a common scale."""
