"""Models of other libraries, read from their files and written to them; one file per family in `families`."""
