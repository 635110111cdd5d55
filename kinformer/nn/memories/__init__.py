"""Memories: hidden states of the past that widen what a layer reads."""
