"""Members: the named models of the library, one file each, built from its parts."""
