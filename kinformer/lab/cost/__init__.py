"""Cost of a model: time, memory, attention calls and temporal range."""
