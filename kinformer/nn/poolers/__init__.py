"""Poolers, which reduce the vectors of a row to one vector."""
