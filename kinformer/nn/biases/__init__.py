"""Biases: parts that change attention scores by the position, segment or task of query and key."""
