"""Families of models of Hugging Face transformers: one file each, with the two-way tables of its model types."""
