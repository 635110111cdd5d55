"""Exact search for the nearest keys. Approximate searches are in lab/search."""
