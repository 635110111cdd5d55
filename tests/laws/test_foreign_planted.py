"""Plain modules of PyTorch with one planted fault each: the laws for other libraries name it, and nothing else."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kinformer as kf
from kinformer.cli.__main__ import run
from kinformer.laws.support.verdicts import laws
from tests.laws.planted_modules import BROKEN, VOCAB, CentresTheBatch, D, PlainLM


def test_a_sound_module_keeps_every_law() -> None:
    assert {verdict.law: verdict.end for verdict in kf.check(PlainLM)} == dict.fromkeys(laws("foreign"), "holds")


@pytest.mark.parametrize("model", BROKEN)
def test_each_fault_is_named_and_nothing_else(model: type[nn.Module]) -> None:
    texts = {verdict.law: verdict.text for verdict in kf.check(model) if verdict.is_failure}
    assert texts.keys() == BROKEN[model].keys()
    for law, part in BROKEN[model].items():
        assert part in texts[law] and "\n" not in texts[law]


class NeedsPositions(PlainLM):
    """Positions come from position_ids, as some models of transformers expect in decoding."""

    def forward(self, tokens: Tensor, attention_mask: Any = None, cache: Any = None, position_ids: Any = None) -> Any:
        positions = torch.arange(tokens.shape[1]) if position_ids is None else position_ids
        return super().forward(tokens, attention_mask, cache, positions)


class TakesEights(PlainLM):
    """Rows must have a multiple of 8 tokens."""

    def forward(self, tokens: Tensor, attention_mask: Any = None, cache: Any = None, position_ids: Any = None) -> Any:
        if tokens.shape[1] % 8:
            raise ValueError("expected a multiple of 8 tokens")
        return super().forward(tokens, attention_mask, cache, position_ids)


class RefusesChunks(PlainLM):
    """Only single tokens can be decoded."""

    def join(self, past: Tensor, new: Tensor) -> Tensor:
        if new.shape[1] > 1:
            raise NotImplementedError("one token at a time")
        return super().join(past, new)


class NeedsTargetsInTraining(PlainLM):
    """A call without targets fails in train mode."""

    def end(self, x: Tensor) -> Tensor:
        if self.training:
            raise ValueError("no targets")
        return x


@pytest.mark.parametrize(
    ("model", "law", "reason"),
    [
        (NeedsPositions, "", ""),
        (TakesEights, "chunk", "the model refuses rows of length 1: ValueError: expected a multiple of 8 tokens"),
        (RefusesChunks, "chunk", "but the model refuses chunks of several tokens: NotImplementedError: one token at a"),
        (NeedsTargetsInTraining, "batch_mates", "but a call in train mode fails: ValueError: no targets"),
    ],
)
def test_a_sound_module_with_limits_breaks_no_law(model: type[nn.Module], law: str, reason: str) -> None:
    verdicts = {verdict.law: verdict for verdict in kf.check(model)}
    assert {name: verdict.end for name, verdict in verdicts.items()} == {
        name: "nothing" if name == law else "holds" for name in laws("foreign")
    }
    assert not law or reason in verdicts[law].text


def test_the_model_of_the_caller_is_unchanged() -> None:
    model = CentresTheBatch().train().to(torch.bfloat16)
    before = copy.deepcopy(model.state_dict())
    kf.check(model, law=("peek", "batch_mates", "ties", "save_load"))
    assert model.training and model.table.weight.dtype == torch.bfloat16
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Labels(nn.Module):
    """An encoder: a bare tensor of three labels for each token, from both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(VOCAB, D), nn.Linear(D, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.table(x)
        return self.out(hidden + hidden.mean(1, keepdim=True))


def test_an_encoder_may_read_ahead() -> None:
    ends = {verdict.law: (verdict.end, verdict.text) for verdict in kf.check(Labels())}
    assert ends["peek"][0] == ends["chunk"][0] == ends["padding"][0] == "nothing"
    assert "no logits of the vocabulary" in ends["peek"][1]
    assert ends["batch_mates"][0] == ends["save_load"][0] == "holds"


def test_a_function_of_tokens_is_tested() -> None:
    model, table = PlainLM(), torch.randn(VOCAB, VOCAB)
    assert [verdict.end for verdict in kf.check(model.forward, law=("peek", "chunk"))] == ["holds", "holds"]

    def ahead(tokens: Tensor) -> Tensor:
        return table[tokens].cumsum(1) + table[tokens[:, -1:]]

    ahead.vocab_size = VOCAB  # type: ignore[attr-defined]
    (verdict,) = kf.check(ahead, law="peek")
    assert verdict.end == "broken" and "reads ahead: changing token 1 of 2" in verdict.text
    with pytest.raises(ValueError, match="has no vocabulary: .* Set the attribute vocab_size of the model"):
        kf.check(lambda tokens: tokens[..., None].float())


class NeedsMore(nn.Module):
    """A module of more than tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, D)

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        return tokens


class GivesOneNumber(NeedsMore):
    """A module whose output is no logits."""

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        return self.table(tokens).sum()


def test_a_model_that_cannot_be_called_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="NeedsMore.forward needs images besides tokens"):
        kf.check(NeedsMore())
    with pytest.raises(ValueError, match=r"gives no logits for \d+ tokens: got \[\], expected"):
        kf.check(GivesOneNumber())
    with pytest.raises(ValueError, match="there is no law 'merge' for a PlainLM"):
        kf.check(PlainLM(), law="merge")


def test_the_command_tests_a_class_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import torch\n\n\nclass Mean(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.table = torch.nn.Embedding(7, 7)\n\n    def forward(self, ids):\n"
        "        return self.table(ids) + self.table(ids).mean(1, keepdim=True)\n\n\n"
        "class Sound(Mean):\n    def forward(self, ids):\n        return self.table(ids)\n\n\n"
        "class Broken(Mean):\n    def forward(self, ids):\n        raise RuntimeError('no kernel')\n"
    )
    assert run(["check", f"{file}:Sound"]) == 0
    assert "Sound, a module; 1 example" in capsys.readouterr().out
    assert run(["check", f"{file}:Mean", "--law", "peek"]) == 1
    assert "✗ peek                reads ahead: changing token 1 of 2 changes" in capsys.readouterr().out
    assert run(["check", f"{file}:Broken"]) == 2
    assert capsys.readouterr().err == "kinformer: Broken cannot be called with tokens [B T]: RuntimeError: no kernel\n"
    assert run(["check", f"{file}:Sound", "--law", "merge"]) == 2
    assert "there is no law 'merge' for" in capsys.readouterr().err
    assert run(["check", f"hf:{tmp_path}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
