"""Which members to try for a task: what each takes at its own sizes, and the ranking by it."""
