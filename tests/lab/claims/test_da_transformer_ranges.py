"""The claim about heads of a DA-Transformer: its task, its function f, and what its heads give."""

import math
from typing import Any

import numpy
import pytest
import torch
from pytest import MonkeyPatch

from kinformer.core.layer import Out
from kinformer.lab.claims import da_transformer_ranges
from kinformer.lab.claims.da_transformer_ranges import FunctionErrors, NearAndFar, PairAccuracy, RangeResult
from kinformer.lab.data.task import of_form
from kinformer.nn.biases.distance_aware import DistanceAware

SEPARATE = RangeResult(
    [-0.3, 0.1],
    [[1.0, 0.5], [1.0, 1.2]],
    FunctionErrors(0.0, 0.0, 1.0),
    PairAccuracy(1.0, 1.0, 1.0),
    {"local": PairAccuracy(0.25, 0.25, 1.0), "global": PairAccuracy(0.25, 1.0, 0.25)},
)


def test_answers_name_the_first_and_the_last_letter_and_counts_tell_nothing() -> None:
    for seed in range(20):
        text = NearAndFar().row(numpy.random.default_rng(seed)).text
        letters, answer = text[:-1], text[-1:]
        assert len(text) == NearAndFar().width and len({letters.count(letter) for letter in set(letters)}) == 1
        assert answer == da_transformer_ranges.answer_symbol(letters[0] - ord("a"), letters[-1] - ord("a"))
        assert len(set(letters[:3])) == len(set(letters[-3:])) == 1
    symbols = {da_transformer_ranges.answer_symbol(far, near) for far in range(4) for near in range(4)}
    assert len(symbols) == 16 and not symbols & {b"a", b"b", b"c", b"d"}


def test_the_function_of_a_layer_is_its_equation_and_its_faults_are_found() -> None:
    bias = DistanceAware(2)
    bias.alpha.data, bias.beta.data = torch.tensor([-0.5, 0.3]), torch.tensor([1.0, 2.0])
    factors = da_transformer_ranges.distance_factors(bias, (0, 3, 7))
    for alpha, beta, of_head in zip((-0.5, 0.3), (1.0, 2.0), factors.tolist(), strict=True):
        expected = [(1 + math.exp(beta)) / (1 + math.exp(beta - alpha * distance)) for distance in (0, 3, 7)]
        assert of_head == pytest.approx(expected, rel=1e-6)
    sound = da_transformer_ranges.function_errors(bias)
    assert max(sound.start, sound.backwards, sound.excess - 1) < 1e-6
    bound = bias.bind
    bias.bind = lambda piece: lambda s, b, h, i, j: 3.0 - bound(piece)(s, b, h, i, j)  # type: ignore[method-assign]
    wrong = da_transformer_ranges.function_errors(bias)
    assert wrong.start == pytest.approx(1.0) and wrong.backwards > 0.1


def test_heads_are_cut_by_the_sign_of_alpha_and_restored() -> None:
    result = da_transformer_ranges.train_and_measure(0, 1)
    assert len(result.alpha) == 4 and set(result.cut) == {"local", "global"} and 0 <= result.whole.both < 0.5
    bias = DistanceAware(3)
    bias.alpha.data = torch.tensor([-0.5, 0.0, 0.3])
    with da_transformer_ranges.without_distances(bias, -1):
        assert bias.alpha.tolist() == pytest.approx([0.0, 0.0, 0.3])
    assert bias.alpha.tolist() == pytest.approx([-0.5, 0.0, 0.3])


@pytest.mark.parametrize("fault", ["both heads are local", "heads that change nothing", "f(0) is not 1"])
def test_heads_must_differ_in_sign_and_in_what_they_give(fault: str, monkeypatch: MonkeyPatch) -> None:
    faults: dict[str, dict[str, Any]] = {
        "both heads are local": {"alpha": [-0.3, -0.1]},
        "heads that change nothing": {"cut": {name: SEPARATE.whole for name in ("local", "global")}},
        "f(0) is not 1": {"errors": FunctionErrors(0.1, 0.0, 1.0)},
    }
    monkeypatch.setattr(da_transformer_ranges, "train_and_measure", lambda *_: SEPARATE._replace(**faults[fault]))
    assert da_transformer_ranges.claim((0, 1)).verdict == "does not hold"


def test_letters_of_an_answer_are_judged_apart() -> None:
    rows = of_form([NearAndFar().row(numpy.random.default_rng(seed)) for seed in range(12)], "masked")

    class Always:
        """A model that always answers with the letters a (far) and b (near)."""

        def mask_batch(self, batch: Any, fixed: bool) -> Any:
            return batch.tokens, None

        def eval(self) -> "Always":
            return self

        def logits(self, read: Any) -> Any:
            scores = torch.zeros(*read.shape, 256)
            scores[..., da_transformer_ranges.answer_symbol(0, 1)[0]] = 1
            return Out(scores, None)

    texts = [bytes(row.tolist()) for row in rows.tokens]
    far, near = ([text[place] == ord(letter) for text in texts] for place, letter in ((0, "a"), (-2, "b")))
    both = [first and last for first, last in zip(far, near, strict=True)]
    expected = [sum(of) / len(of) for of in (both, near, far)]
    assert list(da_transformer_ranges.measure_accuracy(Always(), rows)) == pytest.approx(expected)  # type: ignore[arg-type]
