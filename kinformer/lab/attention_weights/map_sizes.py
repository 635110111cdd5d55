"""map_sizes: limits of the texts and maps of `look`, in a file that imports no torch."""

LONGEST = 16384  # tokens of a text
WHOLE = 2048  # tokens up to which a map has a cell for every pair by default
CELLS = 128  # largest number of rows of a map of a longer text, and of a map on a page
