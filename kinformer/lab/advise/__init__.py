"""Advice about the members (named models) to try for a task: estimated costs and a ranking."""
