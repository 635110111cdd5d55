"""What shorteners stand on: groups of keys that follow one another, and heads that share a matrix."""
