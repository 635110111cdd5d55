"""Executors, one file for each way to compute attention. `reference` defines the result of all others."""
