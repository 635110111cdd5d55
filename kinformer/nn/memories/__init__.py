"""Memories, which let a layer read hidden states of the past."""
