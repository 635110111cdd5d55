"""Environments: what they show, reward and remember of themselves, and how text makes them."""
