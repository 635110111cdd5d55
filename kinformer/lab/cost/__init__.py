"""What a model costs: seconds, memory, reads of keys, and how far back it hears."""
