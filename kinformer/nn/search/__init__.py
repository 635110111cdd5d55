"""Exact search for the nearest vectors of a datastore; approximate searches are in lab/search."""
