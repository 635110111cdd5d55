"""What kinds of data share: files and what is inside them, documents, splits, tokenizers, and tokens on disk."""
