"""Pictures of parts: one file per picture, found by the folder.

A file's `pictures(example, length)` yields what it draws of an example (a pattern, a module) and nothing where it has
nothing to say of it. It asks the part by its public contract: patterns are called, mechanisms and memories are run, and
what they were handed is looked at. `length` is how many positions are wanted, None for as many as show what there is.
"""
