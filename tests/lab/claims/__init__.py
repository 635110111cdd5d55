"""Tests of claims: what they measure, by hand at small sizes, and what is said of it."""
