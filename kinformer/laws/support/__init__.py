"""What laws stand on: batches, comparisons, how a part is put to work, and how a law is asked about an example."""
