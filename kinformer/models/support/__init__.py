"""Base classes and helpers of the models."""
