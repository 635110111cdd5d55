"""Table of a series: the column names and the rows of a CSV file, and the numbers in its cells."""

import csv
import math
from collections.abc import Sequence

from kinformer.checkpoint.atomic_files import existing_path
from kinformer.checkpoint.decompress import lines
from kinformer.core.warn import warn
from kinformer.lab.data.support.dates import is_date

LEAST = 2  # rows of a file: a single date does not show the step to the next row
SEPARATORS = {";": "semicolons (;)", "\t": "tabs", "|": "bars (|)"}  # separators of columns that are refused


def read_table(where: str) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Return the column names of a CSV file, and its rows with their line numbers.

    Blank lines are skipped.

    where: path of the file; it may be compressed.

    Errors: FileNotFoundError if the file is missing. ValueError if it is no CSV file, has no names or fewer than 2
    rows, is not separated by commas, or has a row with more or fewer cells than names.
    """
    path = existing_path(where, "write series=FILE.csv")
    try:
        reader = csv.reader(line.decode() for line in lines(path))
        table = [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"series={where} is not a CSV file: {error}") from error
    if len(table) <= LEAST:
        raise ValueError(
            f"series={where} is too short: got {len(table)} lines, expected a line of names and at least {LEAST} rows. "
            "Give more rows."
        )
    (line, names), *numbered = table
    _check_separator(f"series={where}", line, names, numbered[0][1])
    _check_names(f"series={where}", line, names)
    for number, row in numbered:
        if len(row) != len(names):
            width = "1 column" if len(row) == 1 else f"{len(row)} columns"
            raise ValueError(
                f"line {number:,} of series={where} has {width}, but its first line has {len(names)} names. Write a "
                "line of names such as date,load,oil, and below it one row per time with as many columns."
            )
    return names, numbered


def parse_number(text: str) -> float | None:
    """Return the number that a cell of a table contains as `text`; None if it contains no number."""
    try:
        return float(text)
    except ValueError:
        return None


def parse_finite(text: str, line: int, column: str, where: str) -> float:
    """Return the finite number in a cell of a table.

    text: the cell.
    line, column, where: its line, its column and its file, for the message.

    Errors: ValueError if the number is missing or not finite.
    """
    number = parse_number(text)
    if number is None or not math.isfinite(number):
        raise ValueError(f"line {line:,} of series={where} has {text!r} in the column {column}, expected a number")
    return number


def _check_separator(where: str, line: int, names: Sequence[str], row: Sequence[str]) -> None:
    """Refuse columns that are separated by other signs than commas, such as the semicolons of spreadsheets."""
    for sign, name in SEPARATORS.items():
        cells, signs = [cell.split(sign) for cell in row if sign in cell], ",".join(names).count(sign)
        # commas in a name and in decimals make columns too: "temp,C;walk" over "1,5;3" has a cell of 5 and 3
        if signs and cells and (signs >= len(names) or any(all(map(_is_data, parts)) for parts in cells)):
            raise ValueError(
                f"{where} cannot be read: got columns separated by {name} in line {line}, expected commas. Save the "
                "file with commas between columns, and with points in its numbers."
            )


def _check_names(where: str, line: int, names: Sequence[str]) -> None:
    """Refuse a first line that is a row of data; warn of numbered columns (0,1,2), which may be data too."""
    # pandas leaves the name of its index blank
    if not names[0].strip() or not all(map(_is_data, names)):
        return
    if [name.strip() for name in names] in ([str(n + first) for n in range(len(names))] for first in (0, 1)):
        warn(
            f"{where} begins with {','.join(names):.80}, which is read as the names of columns; if it is a row of "
            "data, write a line of names above it"
        )
        return
    raise ValueError(
        f"{where} has no names of columns: got the numbers {','.join(names):.80} in line {line}, expected names such "
        "as date,load,oil. Write a line of names above the first row."
    )


def _is_data(cell: str) -> bool:
    """True for a number, a date or an empty cell, False for a name."""
    return not cell.strip() or parse_number(cell) is not None or is_date(cell)
