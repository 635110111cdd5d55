"""Members: one file per named system, composed from parts."""
