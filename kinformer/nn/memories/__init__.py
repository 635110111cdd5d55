"""Memories of hidden states of earlier segments, which an attention layer reads as keys."""
