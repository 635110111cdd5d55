"""BERT against Hugging Face's on equal weights: logits, padding, two kinds of segments, loss and gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from kinformer.core.layer import Context
from kinformer.members.bert import bert
from kinformer.models.mlm import MLM
from tests.parity.peers import agree, agree_on_what_is_hidden, copy_weights, gradient, put_qkv, shaken, small

VOCAB, D, DEPTH, HEADS, LENGTH = 19, 24, 3, 4, 40  # Hugging Face counts the mask, which is our id 19, among its tokens


def peer(dtype: torch.dtype) -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=VOCAB + 1,
        **small(D, DEPTH, HEADS),
        max_position_embeddings=LENGTH,
        pad_token_id=None,
        attn_implementation="eager",
    )
    return shaken(BertForMaskedLM(config).to(dtype).eval())  # type: ignore[return-value]


def put_encoder(model: MLM, embeddings: nn.Module, layers: Any, transform: nn.Linear, norm: nn.LayerNorm) -> None:
    """What BERT and Longformer have in common: embeddings, the layers around their attention, the head's layer."""
    made_any: Any = model
    their: Any = embeddings
    copy_weights(made_any.embedding, their.word_embeddings.weight[: model.vocab + 1])
    copy_weights(made_any.kind, their.token_type_embeddings.weight)
    copy_weights(made_any.norm, their.LayerNorm.weight, their.LayerNorm.bias)
    copy_weights(made_any.transform[0], transform.weight, transform.bias)
    copy_weights(made_any.transform[2], norm.weight, norm.bias)
    for block, layer in zip(made_any.body.layers, layers, strict=True):
        attention, mlp = block.layers
        own, out = layer.attention.self, layer.attention.output
        put_qkv(attention.projection, "q", own.query.weight, own.query.bias)
        put_qkv(attention.projection, "k", own.key.weight, own.key.bias)
        put_qkv(attention.projection, "v", own.value.weight, own.value.bias)
        copy_weights(attention.aggregation.linear, out.dense.weight, out.dense.bias)
        copy_weights(block.norms[0], out.LayerNorm.weight, out.LayerNorm.bias)
        copy_weights(mlp.up, layer.intermediate.dense.weight, layer.intermediate.dense.bias)
        copy_weights(mlp.down, layer.output.dense.weight, layer.output.dense.bias)
        copy_weights(block.norms[1], layer.output.LayerNorm.weight, layer.output.LayerNorm.bias)


def ours_like(theirs: BertForMaskedLM) -> MLM:
    model: Any = bert(d=D, depth=DEPTH, heads=HEADS, length=LENGTH, vocab=VOCAB).to(theirs.dtype).eval()
    head = theirs.cls.predictions
    put_encoder(
        model, theirs.bert.embeddings, theirs.bert.encoder.layer, head.transform.dense, head.transform.LayerNorm
    )
    copy_weights(model.position.table, theirs.bert.embeddings.position_embeddings.weight)
    copy_weights(model.head, head.decoder.weight, head.decoder.bias)
    return model


def hidden(rows: int = 3, length: int = 17) -> Tensor:
    """Tokens, the mask among them."""
    return torch.randint(0, VOCAB + 1, (rows, length))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits(dtype: torch.dtype) -> None:
    theirs, tokens = peer(dtype), hidden()
    agree(ours_like(theirs).logits(tokens).y, theirs(input_ids=tokens).logits[..., :VOCAB])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_on_either_side(dtype: torch.dtype) -> None:
    theirs, tokens = peer(dtype), hidden(4)
    tokens[1, :5] = tokens[2, 9:] = tokens[3, :2] = tokens[3, 14:] = -1
    real = tokens >= 0
    positions = (real.cumsum(1) - 1).clamp_min(0)
    want = theirs(input_ids=tokens.clamp_min(0), attention_mask=real.long(), position_ids=positions).logits
    agree(ours_like(theirs).logits(tokens).y[real], want[..., :VOCAB][real])


def test_two_kinds_of_segments() -> None:
    theirs, tokens = peer(torch.float64), hidden()
    segment = (torch.arange(17) > torch.tensor([[4], [9], [16]])).long()
    ctx = Context(torch.arange(17).expand(3, -1), run=True, labels={"segment": segment})
    want = theirs(input_ids=tokens, token_type_ids=segment).logits
    agree(ours_like(theirs).logits(tokens, None, ctx).y, want[..., :VOCAB])


def test_loss_and_gradients() -> None:
    theirs = peer(torch.float64)
    ours: Any = ours_like(theirs)
    agree_on_what_is_hidden(ours, torch.randint(0, VOCAB, (3, 17)), lambda read: theirs(input_ids=read).logits)
    embeddings, first, their_first = theirs.bert.embeddings, ours.body.layers[0], theirs.bert.encoder.layer[0]
    agree(ours.embedding.weight.grad, embeddings.word_embeddings.weight.grad)
    agree(ours.position.table.weight.grad, embeddings.position_embeddings.weight.grad)
    agree(ours.kind.weight.grad, embeddings.token_type_embeddings.weight.grad)
    agree(first.layers[1].up.weight.grad, their_first.intermediate.dense.weight.grad)
    agree(gradient(first.layers[0].projection, "q"), their_first.attention.self.query.weight.grad)
    agree(ours.head.bias.grad, theirs.cls.predictions.decoder.bias.grad)
