"""Conversions: recipes that give a trained model another mechanism, one file each."""
