"""Parts of a model: a folder for each kind and a file for each part.

`attention.py` joins parts into a layer.
"""
