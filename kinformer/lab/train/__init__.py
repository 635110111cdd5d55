"""Training: the loop, its budget, its optimiser, its measure and its checkpoints, one file each."""
