"""Aggregations: how heads become one vector."""
