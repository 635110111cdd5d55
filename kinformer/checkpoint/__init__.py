"""Models and other things on a disk: written whole or not at all, read back with every number checked."""
