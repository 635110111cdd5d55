"""Rows with named fields: JSON lines, and data sets that the package `datasets` reads."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kinformer.checkpoint.decompress import lines
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.from_json import from_json
from kinformer.core.missing_path import missing_path
from kinformer.core.quote import quote

ENDINGS = (".jsonl", ".ndjson", ".json")
PACKINGS = (".gz", ".xz", ".zst")
BUILDERS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".txt": "text", ".arrow": "arrow"}
SPLITS = {"train": "train", "validation": "valid", "valid": "valid", "dev": "valid", "test": "test"}


class DatasetRow(NamedTuple):
    """A row of JSON lines or of a data set.

    place: file and line of the row, or the like, for errors.
    fields: the values of the row by name.
    split: the split that the data set gives it; None if it gives none.
    """

    place: str
    fields: dict[str, Any]
    split: str | None = None

    def text(self, field: str) -> bytes:
        """Return a field as UTF-8; raise ValueError with the row's location if it is missing or not a text."""
        if isinstance(value := self.fields.get(field), bool | int | float):
            raise ValueError(
                f"field {quote(field)} of {self.place} is not a text: got {quote(value)}. Name another field"
            )
        return self.value_bytes(field)

    def value_bytes(self, field: str, option: str = "field") -> bytes:
        """Return a field as UTF-8; numbers and booleans are written out, because labels often are such values.

        option: the option of the data that names the field, for the message.
        """
        if field not in self.fields:
            others = suggest_names(field, map(str, self.fields))
            raise ValueError(f"{self.place} has no field {field!r}{others}. Add ,{option}=NAME to the data")
        value = self.fields[field]
        if getattr(value, "ndim", 1) == 0:  # a number of numpy or PyTorch
            value = value.item()
        if isinstance(value, bool | int | float):
            value = str(value)
        if not isinstance(value, str):
            raise ValueError(
                f"the field {field!r} of {self.place} is not a text: got {type(value).__name__}. Name another field or "
                "leave such rows out"
            )
        return value.encode("utf-8", "surrogatepass")


def is_json_lines(path: Path) -> bool:
    """Return whether the name of the file `path` has an ending of JSON lines."""
    inner = path.with_suffix("") if path.suffix in PACKINGS else path
    return inner.suffix in ENDINGS


def json_lines(path: Path) -> Iterator[DatasetRow]:
    """Read the rows of the file `path` of JSON lines, except empty lines.

    Errors: ValueError that names the line if a line is not a JSON object.
    """
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        place = f"line {number:,} of {path}"
        try:
            fields = from_json(line)
        except ValueError as error:
            raise ValueError(
                f"{place} is not JSON; write an object on each line, leave out field= for a plain text, or leave the "
                "file out: 'text=FOLDER/*.txt'"
            ) from error
        if not isinstance(fields, dict):
            raise ValueError(f"{place} is not a JSON object; write {{...}} with a text in a field on each line")
        yield DatasetRow(place, fields)


def hugging_face(name: str) -> Iterator[DatasetRow]:
    """Stream the rows of a data set that the package `datasets` reads.

    name: NAME or NAME/CONFIG of Hugging Face, or a local file or folder.

    Errors: ImportError if `datasets` is not installed; ValueError, in one line, if `datasets` cannot read the data.
    """
    try:
        import datasets
    except ImportError as error:
        raise ImportError(
            "hf:NAME needs the package datasets, which is not installed; run `pip install '.[datasets]'` in "
            "kinformer's folder"
        ) from error
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # its errors are raised below in one line
    try:
        splits = _load(datasets, name)
        names = split_roles(splits)
        for split, rows in splits.items():
            for number, fields in enumerate(rows, 1):
                yield DatasetRow(f"row {number:,} of hf:{name} ({split})", fields, names[split])
    except ImportError:
        raise
    except Exception as error:  # datasets raises many types for unreadable files
        message = " ".join(str(error).split())[:200] or type(error).__name__
        raise ValueError(f"datasets cannot read hf:{name}: {message}") from error


def split_roles(names: Collection[str]) -> dict[str, str | None]:
    """Return the role of each split of a data set.

    Roles are "train", "valid" and "test"; None stands for rows that are split further.

    names: names of the splits, such as "validation".
    """
    roles = {name: SPLITS.get(name) for name in names}
    if "valid" in roles.values():
        return roles
    return {name: "test" if role == "test" and len(names) > 1 else None for name, role in roles.items()}


def _load(datasets: Any, name: str) -> dict[str, Any]:
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix not in BUILDERS:
            raise ValueError(
                f"cannot tell the form of {path.name}: expected a name that ends in one of {', '.join(BUILDERS)}"
            )
        return datasets.load_dataset(BUILDERS[path.suffix], data_files=str(path), streaming=True)
    if path.is_dir():
        return datasets.load_dataset(str(path), streaming=True)
    if path.suffix in BUILDERS or name.startswith(("/", ".", "~")):
        raise ValueError(missing_path(name))
    owner, _, config = name.rpartition("/")
    try:
        return datasets.load_dataset(name, streaming=True)
    except (FileNotFoundError, ValueError):  # OWNER/NAME and NAME/CONFIG look alike
        if not owner:
            raise
        return datasets.load_dataset(owner, config, streaming=True)
