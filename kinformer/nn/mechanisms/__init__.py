"""Mechanisms: how queries read keys."""
