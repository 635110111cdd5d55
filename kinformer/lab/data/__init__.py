"""Data: one file for each kind of data, with a function that reads it; and sequences of batches."""
