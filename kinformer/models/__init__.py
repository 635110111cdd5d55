"""Models: each puts an input embedding before a body (its layers) and a head and a loss after it."""
