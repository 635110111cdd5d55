"""Calibration of early exits: confidence thresholds, proven by Learn then Test or searched by layer."""
