"""Product (scaled product of query and key), the default score; all other scores are in nn/scores."""
