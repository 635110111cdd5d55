"""Tests of the atlas."""
