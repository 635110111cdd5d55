"""PythonTable: rows with named columns, from a data set or a list of dicts or texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from kinformer.lab.data.support.dataset_rows import DatasetRow, split_roles

READ = 1000  # rows of a data set that are converted at a time


@dataclass(frozen=True, eq=False)
class PythonTable:
    """Rows with named columns, in one or several splits.

    name: the name of the data, for errors and records.
    splits: for each split its rows, a data set of the package `datasets` or a list of dicts; the key None holds rows
        that are split further.
    columns: names of the columns.
    label_names: names of the classes in the column of labels; None if they are unknown.
    """

    name: str
    splits: Mapping[str | None, Any]
    columns: tuple[str, ...]
    label_names: tuple[str, ...] | None = None

    @property
    def is_streamed(self) -> bool:
        """True if the number of rows is unknown, as for a data set that was loaded with streaming=True."""
        return not all(hasattr(rows, "__len__") for rows in self.splits.values())

    def rows(self, split: str | None, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield the values of some columns in each row of a split."""
        rows = self.splits[split]
        if isinstance(rows, list):
            yield from (tuple(row[name] for name in columns) for row in rows)
            return
        for batch in rows.with_format(None).select_columns(list(columns)).iter(READ):
            yield from zip(*(batch[name] for name in columns), strict=True)

    def named_rows(self, **columns: str) -> "NamedRows":
        """Return rows that can be read any number of times, with the fields that `columns` maps to columns."""
        return NamedRows(self, columns)


@dataclass(frozen=True, eq=False)
class NamedRows:
    """The rows of a table, with their splits, as the readers of files give them.

    table: the table.
    columns: the column of each field.
    """

    table: PythonTable
    columns: Mapping[str, str]

    def __iter__(self) -> Iterator[DatasetRow]:
        for split in self.table.splits:
            for number, values in enumerate(self.table.rows(split, *self.columns.values()), 1):
                place = f"row {number:,} of {self.table.name}{'' if split is None else f' ({split})'}"
                yield DatasetRow(place, dict(zip(self.columns, values, strict=True)), split)


def is_dataset(data: Any) -> bool:
    """Return True for a data set of the package `datasets`, which is not imported.

    data: any value.
    """
    return any(base.__module__.partition(".")[0] == "datasets" for base in type(data).__mro__)


def without_column(data: Any) -> Any:
    """Return the values of a column of a data set, such as `dataset["text"]`, as a list; other data stays.

    data: the data that a user passes.
    """
    is_column = is_dataset(data) and {base.__name__ for base in type(data).__mro__} & {"Column", "IterableColumn"}
    return list(data) if is_column else data


def table_of(data: Any) -> PythonTable | None:
    """Return the table of a data set, or of a list of texts or of dicts; None for other data.

    The package `datasets` is not imported.

    data: the data that a user passes.

    Errors: ValueError for a data set without rows.
    """
    if isinstance(data, list | tuple) and data:
        return _table_of_list(data)
    if not is_dataset(data):
        return None
    classes = {base.__name__ for base in type(data).__mro__}
    splits: dict[Any, Any] = dict(data) if classes & {"DatasetDict", "IterableDatasetDict"} else {None: data}
    first_rows = [next(iter(rows), None) for rows in splits.values()]
    if not splits or None in first_rows:
        raise ValueError("the data set has no rows; give at least one in each split")
    first = next(iter(splits.values()))
    roles = split_roles([str(name) for name in splits if name is not None])
    by_role = {None if name is None else roles[name]: rows for name, rows in splits.items()}
    if len(by_role) < len(splits):
        raise ValueError(
            f"the data set has the splits {', '.join(map(str, splits))}, expected train, validation and test. Pass one "
            "of them"
        )
    features = getattr(first, "features", None) or {}
    names = next((getattr(features.get(column), "names", None) for column in ("label", "labels")), None)
    name = getattr(getattr(first, "info", None), "dataset_name", None) or "Dataset"
    return PythonTable(name, by_role, tuple(first_rows[0] or ()), tuple(names) if names else None)


def _table_of_list(data: Sequence[Any]) -> PythonTable | None:
    """Return the table of texts, or of dicts with one row each; None for a list of batches."""
    if all(isinstance(row, str) for row in data):
        return PythonTable("list of texts", {None: [{"text": row} for row in data]}, ("text",))
    if not all(isinstance(row, Mapping) for row in data) or not any(map(_is_row, data)):
        return None
    columns = tuple(data[0])
    for number, row in enumerate(data, 1):
        if missing := next((name for name in columns if name not in row), None):
            raise ValueError(
                f"row {number:,} of the data has no column {missing!r}, but row 1 has; give it to all rows"
            )
    return PythonTable("list of dicts", {None: list(data)}, columns)


def _is_row(row: Mapping[str, Any]) -> bool:
    """Return True if a dict is one row: it has a text, or the token ids of one sequence."""
    tokens = row.get("input_ids")
    if tokens is None:
        return any(isinstance(value, str) for value in row.values())
    return tokens.ndim == 1 if hasattr(tokens, "ndim") else are_integers(tokens)


def are_integers(values: Any) -> bool:
    """Return True for a list or tuple of integers, also of numpy's.

    values: any value.
    """
    return isinstance(values, list | tuple) and all(isinstance(value, Integral) for value in values)
