"""Conversion of trained models: recipe, matching of new parts, adaptation and measurements."""
