"""Shared tools of the picture files: panels, drawers, probes of attention, and two output formats."""
