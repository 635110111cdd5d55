"""Datastores: a model's hidden states for a text on a disk, each with the token that followed it."""
