"""What ways to search stand on: FAISS as a package that may be missing, and searches by their names."""
