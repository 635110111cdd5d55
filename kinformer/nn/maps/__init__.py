"""Maps: features of queries and keys for linear attention."""
