"""How early tokens may leave: exit thresholds proven by Learn then Test, or searched by layer."""
