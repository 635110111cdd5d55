"""Nearest-neighbour search: exact and approximate methods, one file for each.

Approximate methods come from FAISS. ScaNN (Guo et al., 2019, arXiv:1908.10396) is not included: its package (1.4.2) is
a wheel of 12 MB for Python 3.11 on Linux only, so other machines could not read an index. It also stores an index as a
folder of files. Unlike `ivf_pq` it learns codes for large inner products. The datastores of this library search by
distance, and rank candidates by exact distances. A file with a subclass of `Search` based on ScaNN, here or in a
plugin, would be found by its name.
"""
