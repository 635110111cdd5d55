"""Laws: properties that every part must have, one file for each law. The folder is the registry.

A law has three names. SAYS is the property as a sentence for a newcomer. OVER is the kind of parts that the law judges:
"layer", "model", or the name of a contract class such as "pattern". `judge(subject)` is an iterator of findings. A
finding is a sentence with the smallest example that fails.
"""
