"""Shared base classes of tasks."""
