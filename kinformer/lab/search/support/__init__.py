"""Shared base of approximate searches: the package FAISS, which is optional."""
