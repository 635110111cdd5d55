"""Models and other files on disk: written atomically, and verified when they are read."""
