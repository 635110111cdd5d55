"""The contracts.

What a layer, pattern, bias, mechanism, memory and state are, and how reads of disjoint keys merge into one.
"""
