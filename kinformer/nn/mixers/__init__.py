"""Mixers: layers that carry numbers from token to token without attention."""
