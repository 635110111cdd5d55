"""Shorteners: fewer keys made of many, before attention reads them."""
