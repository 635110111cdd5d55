"""Data: one file per kind with `read(where)`, and streams that compute each batch from its step."""
