"""Exact search for the nearest keys; approximate searches are in lab/search."""
