"""Blocks: layers that connect sublayers and norms to the residual stream."""
