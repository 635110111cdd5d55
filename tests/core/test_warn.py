"""warn: the line of a warning is the one that the user wrote, whatever lies between."""

import inspect
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import kinformer
from kinformer.core.warn import warn


def test_the_line_is_the_first_outside_of_the_package() -> None:
    code = "def inner(call, message):\n    call(message)\ndef outer(*arguments):\n    inner(*arguments)\n"
    names: dict[str, Any] = {}
    exec(compile(code, str(Path(kinformer.__file__).parent / "lab/some_file.py"), "exec"), names)
    decorated = contextmanager(lambda: iter([None]))()(names["outer"])  # its frame is in contextlib
    beside: dict[str, Any] = {}  # a file of a user whose path begins like the package's
    exec(compile(code, f"{Path(kinformer.__file__).parent}_plots.py", "exec"), beside)
    with pytest.warns(UserWarning, match="a warning") as caught:
        beside["inner"](inspect.unwrap(warn), "a warning")
    assert caught[0].filename.endswith("kinformer_plots.py")
    for call in (names["inner"], names["outer"], decorated):
        with pytest.warns(UserWarning, match="a warning") as caught:
            call(inspect.unwrap(warn), "a warning")
        assert caught[0].filename == __file__
