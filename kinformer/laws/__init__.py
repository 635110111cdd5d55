"""The laws, one a file: what must be true of every part, with a sentence for a newcomer. The folder is the registry.

A law has SAYS (what is true where it holds), OVER (what it judges: "layer", "model", or the name of a contract class
such as "pattern") and `judge(subject)`, an iterator of findings: sentences, each with the smallest example that fails.
"""
