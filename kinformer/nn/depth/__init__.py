"""Depth: layers that arrange blocks in stacks, repeat them, or let tokens leave them early."""
