"""What biases share; no biases themselves."""
