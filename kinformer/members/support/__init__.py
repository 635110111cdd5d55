"""Shared builders of the members, which turn common keywords into parts."""
