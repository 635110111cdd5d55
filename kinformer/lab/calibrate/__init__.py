"""How early tokens may leave: exit thresholds searched by layer."""
