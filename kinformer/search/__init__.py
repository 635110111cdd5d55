"""Search: how the vectors nearest to a query are found among many, a file for each way.

Approximate ones are FAISS's. ScaNN (Guo et al., 2020, arXiv:1908.10396), often named beside it, is not among them: its
package (1.4.2) is a wheel of 12 MB for Python 3.11 on Linux alone, so that an index beside a datastore could not be
read elsewhere, and it keeps an index as a folder of files. What it has and `ivf_pq` has not are codes learned for large
inner products; stores are asked for distances, and candidates are put in order by exact ones in any case. A file with
a `Search` of it, here or among plugins, is found by its name.
"""
