"""What the joins of blocks/ share."""
