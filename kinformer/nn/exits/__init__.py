"""Exits: what says that a token has been through enough layers."""
