"""What layers over depth stand on: the rows of a batch that still go on."""
