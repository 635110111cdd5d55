"""Shared tools of the picture files: panels, drawers, recorded attention calls, two output formats."""
