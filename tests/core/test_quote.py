"""Values in error messages are short, whatever a user passes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import kinformer as kf
from kinformer.core import discover
from kinformer.core.pattern_parser import parse
from kinformer.core.quote import quote, shorten
from kinformer.lab.data.spec import read_spec
from tests.unhooked import unhooked


@pytest.mark.parametrize(
    ("value", "quoted"),
    [
        (3, "3"),
        ("text", "'text'"),
        ("a" * 81, f"{'a' * 40!r}... (81 characters)"),
        (torch.zeros(2, 3), "<Tensor torch.float32 [2, 3]>"),
        (numpy.zeros(4), "<ndarray float64 [4]>"),
        (nn.Sequential(nn.Linear(2, 2)), "<Sequential>"),
        (list(range(1000)), "[0, 1, 2, 3, 4, 5, 6, 7, ...]"),
        (kf.Band(3), "Band(left=3, right=None)"),
        (Path("notes.txt"), "PosixPath('notes.txt')"),
        (numpy.float64(-1), "np.float64(-1.0)"),
        (numpy.int64(3), "np.int64(3)"),
        (torch.tensor(0.5), "tensor(0.5000)"),
        (torch.zeros(0), "<Tensor torch.float32 [0]>"),
    ],
)
def test_values_are_quoted_in_one_short_line(value: object, quoted: str) -> None:
    assert quote(value) == quoted


def test_a_number_of_more_digits_than_python_writes_has_a_name() -> None:
    assert (quote(10**5000), quote([10**5000])) == ("<int>", "<list>")


def test_a_long_text_is_cut_and_its_length_is_given() -> None:
    assert shorten("a" * 80) == "a" * 80 and shorten("a" * 100, 100) == "a" * 100
    assert shorten("a\nb") == "a b"
    assert shorten("a" * 1_000_000) == "a" * 40 + "... (1,000,000 characters)"


def entry_points(text: str) -> dict[str, Callable[[], Any]]:
    """Calls with a megabyte of text in place of something else."""
    model, q, x = kf.gpt(d=8, depth=1, heads=2, vocab=10), torch.randn(1, 2, 4, 8), torch.randn(1, 4, 8)
    layer, ids, value = kf.Attention(kf.QKV(8, 2), kf.Softmax(kf.Causal())), torch.tensor([[1, 2]]), eval("text")
    return {
        "fit data": lambda: kf.fit(model, text, steps=1),
        "fit text=": lambda: kf.fit(model, f"text={text}", steps=1),
        "fit model": lambda: kf.fit(value, "text=stdlib", steps=1),
        "fit out": lambda: kf.fit(model, torch.arange(100) % 9, steps=1, out=text),
        "fit keyword": lambda: kf.fit(model, "text=stdlib", steps=1, **{text: 1}),
        "fit precision": lambda: kf.fit(model, "text=stdlib", steps=1, precision=text),
        "load": lambda: kf.load(text),
        "save": lambda: kf.save(model, text),
        "generate": lambda: kf.generate(model, value, 3),
        "generate steps": lambda: kf.generate(model, ids, value),
        "generate seed": lambda: kf.generate(model, ids, 1, seed=value),
        "attend": lambda: kf.attend(value, value, value),
        "attend pattern": lambda: kf.attend(q, q, q, pattern=value),
        "attend impl": lambda: kf.attend(q, q, q, impl=text),
        "attend scale": lambda: kf.attend(q, q, q, scale=value),
        "member keyword": lambda: kf.gpt(d=value),
        "member pattern": lambda: kf.gpt(d=8, depth=1, heads=2, pattern=text),
        "member path": lambda: kf.spalm(datastore=text),
        "constructor": lambda: kf.Softmax(value),
        "constructor keyword": lambda: kf.QKV(8, 2, **{text: 1}),
        "layer": lambda: layer(value),
        "layer ctx": lambda: layer(x, None, value),
        "model": lambda: model(value),
        "parse": lambda: parse(text),
        "find_member": lambda: discover.find_member(text),
        "modules": lambda: discover.modules(text),
        "name": lambda: getattr(kf, text),
        "check": lambda: kf.check(text),
        "check law": lambda: kf.check(layer, law=text),
        "read_spec": lambda: read_spec(f"task={text}"),
    }


def long_messages() -> list[str]:
    """Every message that is long, has several lines, or takes its time."""
    wrong = []
    for text in ("a" * 1_000_000, "several words, = and ( " * 45_000, "a line\n" * 150_000):
        for name, call in entry_points(text).items():
            began = time.monotonic()
            try:
                call()
            except Exception as error:
                message = str(error)
                if len(message) < 400 and "\n" not in message and time.monotonic() - began < 10:
                    continue
                wrong.append(f"{name}: {type(error).__name__} of {len(message)} characters: {message[:100]}")
            else:
                wrong.append(f"{name}: not refused")
    return wrong


def test_a_megabyte_of_text_gives_a_message_of_one_short_line() -> None:
    assert unhooked(f"{__name__}:{long_messages.__name__}") == []
