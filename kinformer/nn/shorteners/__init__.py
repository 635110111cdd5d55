"""Shorteners, which replace many keys by fewer keys before attention reads them."""
