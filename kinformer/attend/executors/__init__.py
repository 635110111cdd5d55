"""Executors, one file for each way to compute attention. All give the result of `reference`."""
