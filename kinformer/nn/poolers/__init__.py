"""Poolers, which reduce the vectors of a row's tokens to one vector for the row."""
