"""Advice about the members to try for a task: estimated costs at their default sizes, and a ranking."""
