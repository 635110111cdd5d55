"""Poolers: how the vectors of a row become one vector."""
