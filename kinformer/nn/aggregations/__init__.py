"""Aggregations, which combine the outputs of heads into one vector."""
