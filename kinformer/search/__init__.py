"""Search: how the vectors nearest to a query are found among many, a file for each way."""
