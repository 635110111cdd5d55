"""Adapt: how sure a model is of what it has so far, and what that decides."""
