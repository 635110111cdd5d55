"""Helpers of the laws for models of other libraries: calls of such a model, and comparisons of logits."""
