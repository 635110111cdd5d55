"""Blocks: how sublayers and norms meet the residual stream."""
