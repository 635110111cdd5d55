"""stream: the tokens of generate, one by one."""

from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.decoding.generate import generate
from kinformer.decoding.stream import stream
from tests.decoding.writers import writer

OPTIONS: tuple[dict[str, Any], ...] = (
    {"seed": 3},
    {"temperature": 0},
    {"temperature": 1.5, "top_k": 4, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2, "seed": 1},
    {"temperature": 0, "prompt_lookup": 4, "stop": 2},
    {"temperature": 0, "recompute": True},
)


@pytest.mark.parametrize("options", OPTIONS)
def test_it_yields_the_tokens_of_generate(options: dict[str, Any], float64: None) -> None:
    model, prompt = writer("rotary"), [1, 4, 2, 1, 4]
    expected = [token for token in generate(model, prompt, 12, **options)[0, 5:].tolist() if token >= 0]
    assert expected and list(stream(model, prompt, 12, **options)) == expected
    assert kf.stream is stream


def test_the_token_that_ends_a_text_is_the_last(float64: None) -> None:
    model = writer("memory")
    free = list(stream(model, [4], 9, temperature=0))
    assert list(stream(model, [4], 9, temperature=0, stop=free[3])) == free[: free.index(free[3]) + 1]
    assert list(stream(model, [4], 0)) == []


def test_a_target_is_streamed_from_its_source(float64: None) -> None:
    torch.manual_seed(0)
    model = kf.transformer(d=16, depth=1, heads=2, vocab=11)
    source = torch.tensor([[1, 2, 3]])
    row = generate(model, None, 6, source=source, seed=0)[0]
    assert list(stream(model, None, 6, source=source, seed=0)) == row[row >= 0].tolist()


def test_a_token_is_computed_only_when_it_is_wanted_and_the_model_is_free_in_between() -> None:
    model, calls = writer("rotary").train(), list[int]()
    model.head.register_forward_hook(lambda *_: calls.append(1))
    for number, _ in enumerate(stream(model, [1, 2], 5, seed=0), 1):
        assert len(calls) == number and model.training and torch.is_grad_enabled()
    assert number == 5


def test_a_text_that_begins_in_inference_mode_can_continue_outside(float64: None) -> None:
    model = writer("rotary")
    expected, tokens = list(stream(model, [1, 2], 9, temperature=0)), stream(model, [1, 2], 9, temperature=0)
    with torch.inference_mode():
        begun = [next(tokens), next(tokens)]
    assert begun + list(tokens) == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": [[1], [2]]}, r"stream continues one prompt: got 2 rows, expected 1. Use generate\("),
        ({"tokens": [1], "temperature": -1}, "temperature=-1 is not a number from 0 up"),
        ({"tokens": [99]}, "unknown token id: got 99"),
    ],
)
def test_wrong_arguments_are_refused_before_the_first_token(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stream(writer("rotary"), steps=3, **arguments)
    with pytest.raises(TypeError, match="stream has no keyword 'beam'"):
        stream(writer("rotary"), [1], 3, beam=2)  # type: ignore[call-arg]
