"""What claims stand on: measures, their thresholds and verdicts."""
