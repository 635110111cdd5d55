"""Shorteners, which replace the keys and values of a row by fewer keys and values before attention."""
