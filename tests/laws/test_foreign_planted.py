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

VOCAB, D = 23, 16


class PlainLM(nn.Module):
    """One layer of causal attention with a cache, an attention mask and a tied head; twins change one method."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(VOCAB, D), nn.Embedding(200, D)
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, VOCAB, bias=False)
        self.head.weight = self.table.weight

    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos <= q_pos

    def end(self, x: Tensor) -> Tensor:
        return x

    def join(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([past, new], 1)

    def hide(self, scores: Tensor, attention_mask: Tensor) -> Tensor:
        return scores.masked_fill(attention_mask[:, None] == 0, -1e9)

    def forward(
        self, tokens: Tensor, attention_mask: Tensor | None = None, cache: Any = None, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        before = 0 if cache is None else cache[0].shape[1]
        columns = torch.arange(before, before + tokens.shape[1])
        x = self.table(tokens) + self.places(columns[None] if position_ids is None else position_ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is not None:
            k, v = self.join(cache[0], k), self.join(cache[1], v)
        scores = q @ k.transpose(1, 2) / 4
        k_pos = torch.arange(k.shape[1])
        if attention_mask is not None:
            scores = self.hide(scores, attention_mask)
        scores = scores.masked_fill(~self.allowed(columns[:, None] - before + k.shape[1] - q.shape[1], k_pos), -1e9)
        return self.head(self.end(x + scores.softmax(-1) @ v)), (k, v)


class Peeks(PlainLM):
    """One place reads one token ahead, beyond 128 tokens."""

    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return k_pos <= q_pos + (q_pos == 128)


class PeeksBehindAZero(PlainLM):
    """The leak has a weight of zero, as after an initialisation."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def end(self, x: Tensor) -> Tensor:
        return x + self.gate * x.flip(1)


class ForgetsOneKey(PlainLM):
    """The cache is off by one: it loses the oldest key."""

    def join(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([past[:, 1:], new], 1)


class NormsAcrossRows(PlainLM):
    """Batch normalisation mixes the rows in train mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(D)

    def end(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class CentresTheBatch(PlainLM):
    """The mean over the batch is subtracted in every mode."""

    def end(self, x: Tensor) -> Tensor:
        return x - x.mean(0, keepdim=True)


class ReadsPadding(PlainLM):
    """The attention mask is taken and not used."""

    def hide(self, scores: Tensor, attention_mask: Tensor) -> Tensor:
        return scores


class DividesByTheEmptyRow(PlainLM):
    """A masked row is -inf, so a row of padding only gives NaN, and so does the gradient of all rows."""

    def hide(self, scores: Tensor, attention_mask: Tensor) -> Tensor:
        return scores.masked_fill(attention_mask[:, None] == 0, -torch.inf)


class Overflows(PlainLM):
    """exp(100) is finite in float64 alone."""

    def end(self, x: Tensor) -> Tensor:
        return x + (100 + 0 * x).exp() / (100 + 0 * x).exp()


class CountsInLowPrecision(PlainLM):
    """Positions beyond 256 are the same number in bfloat16."""

    def end(self, x: Tensor) -> Tensor:
        position = torch.arange(x.shape[1]).to(x.dtype)[:, None]
        return x + 20 * torch.sin(position * torch.arange(1, D + 1).to(x.dtype))


class UntiedAfterLoading(PlainLM):
    """Loading makes the head a weight of its own."""

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        result = super().load_state_dict(*args, **options)
        self.head.weight = nn.Parameter(self.head.weight.detach().clone())
        return result


class TiedByData(PlainLM):
    """Two parameters share memory, until the precision changes."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.table.weight.data)


class TiedByValue(PlainLM):
    """The head starts as a copy of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = nn.Parameter(self.table.weight.detach().clone())


class ForgetsANumber(PlainLM):
    """A random tensor is no buffer, so it is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.rand(D)

    def end(self, x: Tensor) -> Tensor:
        return x * self.scale.to(x.dtype)


class DropsInEval(PlainLM):
    """Dropout does not follow the mode."""

    def end(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, 0.5)


PLANTED: list[tuple[type[PlainLM], str, str]] = [
    (Peeks, "peek", "changing token 129 of 130 changes the logits at position 128 by"),
    (PeeksBehindAZero, "peek", "changing token 1 of 2 changes the logits at position 0 by"),
    (
        ForgetsOneKey,
        "chunk",
        "decoding 2 tokens as a prompt of 1 tokens, then token by token, gives logits at position",
    ),
    (NormsAcrossRows, "batch_mates", "gives other logits in train mode than in a batch of one"),
    (CentresTheBatch, "batch_mates", "gives other logits than in a batch of one"),
    (ReadsPadding, "padding", "columns of padding on the left of a row of"),
    (DividesByTheEmptyRow, "empty_rows", "although the loss reads only other rows"),
    (Overflows, "dtype", "are NaN or infinite in float32"),
    (CountsInLowPrecision, "dtype", "in bfloat16, the median error over"),
    (UntiedAfterLoading, "ties", "after saving and loading, head.weight and table.weight are no longer one weight"),
    (TiedByData, "ties", "after a change of precision, head.weight and table.weight are no longer one weight"),
    (TiedByValue, "ties", "table.weight and head.weight are equal but are two weights"),
    (ForgetsANumber, "save_load", "save every number as a parameter or a persistent buffer"),
    (DropsInEval, "runs", "the same call in eval mode gives logits that differ"),
]


def test_a_sound_module_keeps_every_law() -> None:
    assert {verdict.law: verdict.end for verdict in kf.check(PlainLM)} == dict.fromkeys(laws("foreign"), "holds")


@pytest.mark.parametrize(("model", "law", "text"), PLANTED, ids=[model.__name__ for model, _, _ in PLANTED])
def test_each_fault_is_named(model: type[PlainLM], law: str, text: str) -> None:
    (verdict,) = kf.check(model, law=law)
    assert (verdict.law, verdict.end) == (law, "broken")
    assert text in verdict.text and "\n" not in verdict.text


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
