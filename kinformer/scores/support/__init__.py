"""What scores stand on: those that are no product of a query and a key."""
