"""Datastores: the hidden states of a text on a disk, each with the token that followed it."""
