"""The base of approximate searches: FAISS, a package that may be missing."""
