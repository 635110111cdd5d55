"""Decoding: text generation by sampling or beam search, and files that keep a decoding state."""
