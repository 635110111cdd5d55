"""What mechanisms stand on: groups of keys chosen by content, read sorted; how tokens enter linear attention's sums."""
