"""Biases: changes of attention scores by the position, label or task of query and key."""
