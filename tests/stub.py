"""Writes kinformer/__init__.pyi, from which type checkers and editors know the public names: `python -m tests.stub`."""

from pathlib import Path

import kinformer

STUB = Path(kinformer.__file__).with_suffix(".pyi")
VARIABLES = "__version__: str", "__all__: list[str]", "_FILE_OF: dict[str, str]"


def stub_text() -> str:
    """One import for each public name, sorted by file."""
    home = {**kinformer._parts(), **kinformer._FILE_OF}
    lines = sorted(f"from kinformer.{home[name]} import {name} as {name}" for name in home)
    return (
        "# Written by `python -m tests.stub`.\n"
        + "\n".join(lines)
        + "\n\n__version__: str\n__all__: list[str]\n_FILE_OF: dict[str, str]\n"
    )


if __name__ == "__main__":
    STUB.write_text(stub_text(), encoding="utf-8")
