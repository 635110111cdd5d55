"""Encodings of absolute positions: they are added to the input or rotate queries and keys."""
