"""Training: the loop, the budget, the optimiser, the evaluation and the checkpoints, each in its own file."""
