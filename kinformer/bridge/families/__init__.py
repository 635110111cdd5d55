"""Families of models of Hugging Face transformers, with their two-way tables."""
