"""Saved models and other files on disk, which are written atomically and verified when they are read."""
