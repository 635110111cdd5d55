"""What models stand on: how one with a table of positions reads on beyond its end."""
