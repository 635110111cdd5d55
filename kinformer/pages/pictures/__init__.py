"""Pictures of parts of models: each file of this folder draws some kinds and is found automatically.

A file has a function `pictures(example, length)`. It yields `Picture` objects for an example, which is a pattern or a
module, and yields nothing if it has no drawing for that example. It uses only the public methods of a part: it calls
patterns, runs attention mechanisms and memories, and inspects their arguments. `length` is the number of positions to
draw; None chooses a length that shows the structure.
"""
