"""Claims of papers, one a file: `claim(seeds)` measures in about a minute what was said, against a threshold fixed
before the code, and draws it. A file is found by lying here: `kinformer claim NAME`.
"""
