"""Support of the laws: batches, comparisons, the layers that a part is tested in, and verdicts."""
