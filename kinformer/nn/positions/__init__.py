"""Encodings of absolute position, which are added to the input or rotate queries and keys."""
