"""Depth: how blocks follow one another."""
