"""Depth: layers that stack blocks, repeat them, or let tokens leave the stack early."""
