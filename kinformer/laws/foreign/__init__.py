"""Laws for models of other libraries, which map tokens to logits.

Such a model is any module of PyTorch, among them the models of transformers.

Every file in this folder is a law, and no other list names it. It defines SAYS, OVER = "module" and `judge(box)`, as
the files of `kinformer/laws` do. `judge` gets a `BlackBox` and yields findings. A law with the name of a law of our own
parts tests the same property.
"""
