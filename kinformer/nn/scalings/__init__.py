"""Scalings of rotary positions for rows longer than those of the training; the laws test them inside `Rotary`."""
