"""Data: one file per kind, each with `read(where)`; and how a text becomes batches, as pure functions of the step."""
