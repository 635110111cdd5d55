"""Scalings of rotary positions for longer rows; the laws test them inside `Rotary`."""
