"""Shared parts of the claims: measures with thresholds, verdicts, and small trainings."""
