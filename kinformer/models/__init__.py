"""Models: a body between an input and a loss."""
