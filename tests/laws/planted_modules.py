"""Plain modules of PyTorch for the laws about other libraries: a sound one, and twins with one planted fault each.

BROKEN has the laws that each twin breaks, with a part of the finding, or "" for a consequence. The fault is for the
first law.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

VOCAB, D = 23, 16
FIRST = torch.randint(VOCAB, (1,), generator=torch.Generator().manual_seed(0))  # the first token that the laws draw


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


class ReadsAFarToken(PlainLM):
    """Position 30 reads token 52, which the law never changes alone."""

    def allowed(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return (k_pos <= q_pos) | ((q_pos == 30) & (k_pos == 52))


class PeeksInSomeRows(PlainLM):
    """The last token is read from every position, but only in rows that begin with one token."""

    def forward(self, tokens: Tensor, attention_mask: Any = None, cache: Any = None, position_ids: Any = None) -> Any:
        logits, cache = super().forward(tokens, attention_mask, cache, position_ids)
        return logits + ((tokens[:, :1] == FIRST) * tokens[:, -1:])[..., None], cache


class ForgetsInChunks(PlainLM):
    """A chunk of several tokens reads a cache of zeros; single tokens read the cache."""

    def join(self, past: Tensor, new: Tensor) -> Tensor:
        return torch.cat([past if new.shape[1] == 1 else past * 0, new], 1)


class CannotDecode(PlainLM):
    """A call with a cache fails."""

    def join(self, past: Tensor, new: Tensor) -> Tensor:
        raise RuntimeError("no cache here")


class ReadsPaddingAtTheEnd(PlainLM):
    """Scores depend on padding in the last column."""

    def hide(self, scores: Tensor, attention_mask: Tensor) -> Tensor:
        return super().hide(scores, attention_mask) * (1 + (attention_mask[:, None, -1:] == 0))


class RefusesPadding(PlainLM):
    """A mask with padding is refused."""

    def hide(self, scores: Tensor, attention_mask: Tensor) -> Tensor:
        if not attention_mask.all():
            raise RuntimeError("no padding here")
        return scores


class PairsReadPadding(nn.Module):
    """A decoder of single tokens reads the mean of the source and its padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)

    def forward(self, target: Tensor, source: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        hidden: Tensor = self.head(self.table(target) + self.table(source).mean(1, keepdim=True))
        return hidden


class SpoilsTheBatch(PlainLM):
    """A row of padding only makes all rows NaN."""

    def hide(self, scores: Tensor, attention_mask: Tensor) -> Tensor:
        least = attention_mask.sum(1).min().clamp(max=1).to(scores.dtype)
        return super().hide(scores, attention_mask) * (least / least)


class RefusesBfloat16(PlainLM):
    """A step exists for other precisions only."""

    def end(self, x: Tensor) -> Tensor:
        if x.dtype == torch.bfloat16:
            raise RuntimeError("no bfloat16 here")
        return x


class DividesByARoundedNumber(PlainLM):
    """1.001 - 1 is 0 in bfloat16."""

    def end(self, x: Tensor) -> Tensor:
        return x + 1e-6 / (torch.tensor(1.001, dtype=x.dtype) - 1)


class CountsLateInLowPrecision(PlainLM):
    """Positions are rounded in the last quarter of the row only, so most tokens have no error."""

    def end(self, x: Tensor) -> Tensor:
        position = torch.arange(x.shape[1]).to(x.dtype)[:, None]
        return x + 20 * (position >= 120) * torch.sin(position * torch.arange(1, D + 1).to(x.dtype))


class UntiesWithGradients(PlainLM):
    """The head becomes a weight of its own as soon as gradients are computed."""

    def end(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.head.weight = nn.Parameter(self.table.weight.detach().clone())
        return x


class OnlySaysThatItIsTied(PlainLM):
    """The config promises tied weights, as in transformers, but the head is a weight of its own."""

    _tied_weights_keys = ("head.weight",)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(D, VOCAB, bias=False)
        self.config = SimpleNamespace(tie_word_embeddings=True)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def get_output_embeddings(self) -> nn.Module:
        return self.head


class LosesAName(PlainLM):
    """The state has no table of positions, so it cannot be loaded."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        state = super().state_dict(*args, **options)
        return {name: value for name, value in state.items() if name != "places.weight"}


class LosesAWeightInAFolder(PlainLM):
    """Loading from a folder leaves a new table of positions, while load_state_dict is right."""

    def save_pretrained(self, folder: str) -> None:
        torch.save(self.state_dict(), Path(folder, "weights"))

    @classmethod
    def from_pretrained(cls, folder: str, **options: Any) -> Any:
        model = cls()
        state = torch.load(Path(folder, "weights"))
        model.load_state_dict(state | {"places.weight": model.places.weight})
        return model


class IsInfinite(PlainLM):
    """The logits of one token are infinite."""

    def forward(self, tokens: Tensor, attention_mask: Any = None, cache: Any = None, position_ids: Any = None) -> Any:
        logits, cache = super().forward(tokens, attention_mask, cache, position_ids)
        return logits + torch.tensor([torch.inf] + [0.0] * (VOCAB - 1)), cache


READS = "reads ahead: changing "
BROKEN: dict[type[nn.Module], dict[str, str]] = {
    Peeks: {"peek": READS + "token 129 of 130 changes the logits at position 128 by", "chunk": ""},
    PeeksBehindAZero: {"peek": READS + "token 1 of 2 changes the logits at position 0 by", "chunk": "", "padding": ""},
    ReadsAFarToken: {"peek": READS + "tokens 39 to 52 of 53 changes the logits at position 30 by", "chunk": ""},
    PeeksInSomeRows: {"peek": READS + "token 1 of 2 changes the logits at position 0 by", "chunk": "", "padding": ""},
    ForgetsOneKey: {
        "chunk": "decoding 2 tokens as a prompt of 1 tokens, then token by token, gives logits at position"
    },
    ForgetsInChunks: {"chunk": "decoding 6 tokens as chunks of [3, 1, 2] tokens gives logits"},
    CannotDecode: {"chunk": "as a prompt of 1 tokens, then token by token, fails: RuntimeError: no cache here"},
    NormsAcrossRows: {"batch_mates": "gives other logits in train mode than in a batch of one"},
    CentresTheBatch: {"batch_mates": "gives other logits than in a batch of one", "padding": ""},
    ReadsPadding: {"padding": "columns of padding on the left of a row of"},
    ReadsPaddingAtTheEnd: {"padding": "columns of padding on the right of a row of"},
    RefusesPadding: {"padding": "columns with attention_mask fails: RuntimeError: no padding here"},
    PairsReadPadding: {"padding": "columns of padding on the right of the source change the logits"},
    DividesByTheEmptyRow: {"empty_rows": "although the loss reads only other rows"},
    SpoilsTheBatch: {"empty_rows": "logits of the other rows are NaN or infinite"},
    Overflows: {"dtype": "are NaN or infinite in float32", "empty_rows": ""},
    DividesByARoundedNumber: {"dtype": "are NaN or infinite in bfloat16"},
    RefusesBfloat16: {"dtype": "the model cannot be called in bfloat16: RuntimeError: no bfloat16 here"},
    CountsInLowPrecision: {"dtype": "in bfloat16, the median error over 160 tokens is", "chunk": "", "padding": ""},
    CountsLateInLowPrecision: {"dtype": "in bfloat16, the median error over the last quarter is", "chunk": ""},
    UntiedAfterLoading: {"ties": "after saving and loading, head.weight and table.weight are no longer one weight"},
    TiedByData: {"ties": "after a change of precision, head.weight and table.weight are no longer one weight"},
    TiedByValue: {"ties": "table.weight and head.weight are equal but are two weights"},
    UntiesWithGradients: {"ties": "after a gradient step, head.weight and table.weight differ"},
    OnlySaysThatItIsTied: {"ties": "tie_word_embeddings is true, but the embedding and the head are two weights"},
    ForgetsANumber: {"save_load": "save every number as a parameter or a persistent buffer"},
    LosesAWeightInAFolder: {"save_load": "after save_pretrained and from_pretrained, the logits at position"},
    LosesAName: {"save_load": "the model cannot be saved and loaded: RuntimeError", "ties": ""},
    DropsInEval: {"runs": "the same call in eval mode gives logits that differ"},
    IsInfinite: {"runs": "logits of 160 tokens are NaN or infinite"},
}
