"""Functions that several conversions share."""
