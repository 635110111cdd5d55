"""Training: loop, budget, optimiser, evaluation and checkpoints, each in its own file."""
