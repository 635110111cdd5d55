"""Longformer against Hugging Face's on equal weights: global tokens per example, windows by layer, padding, loss.

Their local softmax is taken in float32 whatever comes; here it keeps float64, so that float64 can be compared in full.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import LongformerConfig, LongformerForMaskedLM

from kinformer.core.layer import Context
from kinformer.members.longformer import longformer
from kinformer.models.mlm import MLM
from kinformer.nn.patterns.marked import Marked
from tests.parity.peers import agree, agree_on_what_is_hidden, copy_weights, gradient, shaken, small
from tests.parity.test_hf_bert import put_encoder

VOCAB, D, HEADS, LENGTH = 19, 24, 4, 40
PAD = VOCAB + 1  # an id of theirs alone; the mask is VOCAB for both
WINDOWS = (2, 4)


@pytest.fixture(autouse=True)
def softmax_in_the_dtype_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    def softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return scores.softmax(dim)

    monkeypatch.setattr(F, "softmax", softmax)


def peer(dtype: torch.dtype) -> LongformerForMaskedLM:
    config = LongformerConfig(
        vocab_size=VOCAB + 2,
        **small(D, len(WINDOWS), HEADS),
        max_position_embeddings=LENGTH + PAD + 1,
        attention_window=[2 * window for window in WINDOWS],  # theirs counts both sides
        type_vocab_size=1,
        pad_token_id=PAD,
        bos_token_id=0,
        eos_token_id=2,
    )
    return shaken(LongformerForMaskedLM(config).to(dtype).eval())  # type: ignore[return-value]


def ours_like(theirs: LongformerForMaskedLM, marked: int) -> MLM:
    model: Any = longformer(
        d=D, depth=len(WINDOWS), heads=HEADS, window=WINDOWS, marked=marked, length=LENGTH, vocab=VOCAB
    )
    model = model.to(theirs.dtype).eval()
    their, head = theirs.longformer, theirs.lm_head
    put_encoder(model, their.embeddings, their.encoder.layer, head.dense, head.layer_norm)
    copy_weights(model.position.table, their.embeddings.position_embeddings.weight[PAD + 1 :])
    copy_weights(model.head, head.decoder.weight[: VOCAB + 1], head.decoder.bias[: VOCAB + 1])
    for block, layer in zip(model.body.layers, their.encoder.layer, strict=True):
        own, mine = layer.attention.self, block.layers[0]
        copy_weights(mine.side, own.query_global.weight, own.query_global.bias)
        copy_weights(mine.key_side, *wide([own.key_global, own.value_global]))
    return model


def wide(parts: list[Any]) -> list[Tensor]:
    """Weights and biases of several matrices, one below the other."""
    return [torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias")]


def on_both(
    theirs: LongformerForMaskedLM, tokens: Tensor, marked: Tensor, ours: MLM, also: Marked | None
) -> tuple[Tensor, Tensor]:
    """Their logits of real tokens and ours; padding is -1 in tokens."""
    real = tokens >= 0
    their_tokens = tokens.masked_fill(~real, PAD)
    want = theirs(input_ids=their_tokens, attention_mask=real.long(), global_attention_mask=marked.long()).logits
    ctx = Context((real.cumsum(1) - 1).masked_fill(~real, -1), run=True, also=also)
    return ours.logits(tokens, None, ctx).y[real], want[..., :VOCAB][real]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("marked", [1, 3])
def test_the_first_tokens_are_global(dtype: torch.dtype, marked: int) -> None:
    theirs, tokens = peer(dtype), torch.randint(0, VOCAB + 1, (3, 21))
    first = (torch.arange(21) < marked).expand(3, -1)
    agree(*on_both(theirs, tokens, first, ours_like(theirs, marked), None))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_global_tokens_and_padding_of_each_example(dtype: torch.dtype) -> None:
    theirs, tokens = peer(dtype), torch.randint(0, VOCAB + 1, (3, 21))
    tokens[1, 15:] = tokens[2, 9:] = -1
    marked = torch.zeros(3, 21, dtype=torch.bool)
    marked[0, [0, 7, 20]] = marked[1, [3, 4]] = True  # and none in the last row
    agree(*on_both(theirs, tokens, marked, ours_like(theirs, 0), Marked(marked)))


def test_loss_and_gradients() -> None:
    theirs = peer(torch.float64)
    ours: Any = ours_like(theirs, 2)
    first = (torch.arange(21) < 2).expand(3, -1).long()
    agree_on_what_is_hidden(
        ours, torch.randint(0, VOCAB, (3, 21)), lambda read: theirs(input_ids=read, global_attention_mask=first).logits
    )
    block, their = ours.body.layers[0], theirs.longformer.encoder.layer[0]
    own, mine = their.attention.self, block.layers[0]
    agree(mine.side.weight.grad, own.query_global.weight.grad)
    agree(mine.key_side.weight.grad, torch.cat([own.key_global.weight.grad, own.value_global.weight.grad]))
    agree(gradient(mine.projection, "k"), own.key.weight.grad)
    agree(block.layers[1].down.weight.grad, their.output.dense.weight.grad)
