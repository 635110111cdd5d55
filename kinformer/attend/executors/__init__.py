"""Executors: a file for each way to compute one read of attention. `reference` defines the result of all others."""
