"""map_sizes: lengths of a text that `look` reads, and numbers of rows of a map; the command line imports no torch."""

LONGEST = 16384  # tokens of a text
WHOLE = 2048  # tokens up to which a map has a cell for every pair by default
CELLS = 128  # largest number of rows of a map of a longer text, and of a map on a page
