"""Data: one file per kind with `read(where)`, and streams that compute the batch of a step from a seed."""
