"""The progress of `fit`: a bar in a terminal and a notebook, nothing in a pipe."""

import io
import re
import sys
import types

import pytest

from kinformer.lab.train import fit_progress
from kinformer.lab.train.fit import fit
from tests.lab.train import tiny

QUICK = {"steps": 3, "batch": 2, "length": 16}


class Terminal(io.StringIO):
    """A stderr that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """No fixture, because pytest sets stderr again between the set-up and the test."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm"), monkeypatch.setenv("COLUMNS", "160")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def shown(stream: io.StringIO) -> str:
    """What is written, without the codes that move the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())


def test_a_terminal_shows_a_bar_with_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    history = fit(tiny.bigram(), tiny.text(), **QUICK)
    (last,) = [line for line in re.split("[\r\n]+", shown(stream)) if "step 3:" in line][-1:]
    valid = f"validation {history.points[-1].valid:.3f}"
    assert last.startswith("bigram ") and "━" in last and valid in last
    assert re.search(r"step 3: [\d.]+ bits per byte, .*, [\d,]+ tokens/s, 0:00 left", last)


def test_false_is_silent_in_a_terminal_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    fit(tiny.bigram(), tiny.text(), progress=False, **QUICK)
    assert stream.getvalue() == ""


def test_a_pipe_shows_nothing_unless_it_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    fit(tiny.bigram(), tiny.text(), **QUICK)
    assert capsys.readouterr() == ("", "")
    fit(tiny.bigram(), tiny.text(), progress=True, **QUICK)
    out, err = capsys.readouterr()
    assert out == "" and "bigram: step 3: " in err and "\x1b" not in err


def test_the_bar_of_a_failed_training_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    with pytest.raises(Exception, match="try a lr below"):
        fit(tiny.bigram(), tiny.text(), lr=1e30, schedule="constant", **QUICK | {"steps": 20})
    assert stream.getvalue().endswith("\x1b[?25h") and sys.stderr is stream  # the cursor is back


class Widget:
    """ipywidgets.Output, with what is displayed while it is entered."""

    displayed: list[str] = []  # noqa: RUF012

    def __enter__(self) -> "Widget":
        return self

    def __exit__(self, *error: object) -> None: ...

    def clear_output(self, wait: bool = False) -> None: ...


@pytest.mark.parametrize("has_widgets", [True, False])
def test_a_notebook_shows_a_bar_or_lines(has_widgets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    displays: list[object] = []
    display = types.SimpleNamespace(display=displays.append, clear_output=lambda wait=False: None)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(display=display))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setitem(sys.modules, "ipywidgets", types.SimpleNamespace(Output=Widget))
    monkeypatch.setattr(fit_progress, "find_spec", lambda name: object() if has_widgets else None)
    fit(tiny.bigram(), tiny.text(), **QUICK)
    html = [item.html for item in displays if "step 3: " in getattr(item, "html", "")]
    assert any(isinstance(item, Widget) for item in displays) is has_widgets
    assert "tokens/s" in html[-1] and ("━" in html[-1]) is has_widgets
