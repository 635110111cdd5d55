"""What executors share; no executors themselves."""
