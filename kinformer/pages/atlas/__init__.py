"""The atlas: a static site with a card for each member, a map of descent, and a playground."""
