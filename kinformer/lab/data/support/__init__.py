"""Shared parts of the kinds of data: files, documents, splits, tokenizers, and tokens on disk."""
