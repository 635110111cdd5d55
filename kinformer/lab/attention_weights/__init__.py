"""Attention weights of a model on one text: maps, numbers of each head, and retrieved keys.

Weights are computed again from the queries, keys and biases of each attention call, for some queries at a time. So no
matrix of all queries and keys is in memory, unless a map has a cell for every pair of tokens.
"""
