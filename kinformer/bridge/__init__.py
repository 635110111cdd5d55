"""Models of other libraries, read from files and written to files."""
