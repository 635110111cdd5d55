"""Tests of the documentation: its pages, its links and the text that they are made from."""
