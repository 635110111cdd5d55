"""Calibration of early exits: thresholds proven by Learn then Test, or searched for each layer."""
