"""Positions: encodings of absolute position, added to the input or turning queries and keys."""
