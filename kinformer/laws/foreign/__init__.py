"""Laws for models of other libraries: any module of PyTorch that maps tokens to logits, and models of transformers.

Every file in this folder is a law, and no other list names it. It defines SAYS, OVER = "module" and `judge(box)`, as
the files of `kinformer/laws` do. `judge` gets a `BlackBox` and yields findings. A law with the name of a law of our own
parts tests the same property.
"""
