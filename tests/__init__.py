"""Tests: laws over everything discovered, one folder per folder of parts, parity with peers and goldens."""
