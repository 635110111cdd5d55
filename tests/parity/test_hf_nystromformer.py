"""Nystromformer against Hugging Face's on equal weights: logits, both starts of the pseudo-inverse, loss, gradients.

Theirs wants rows of a configured length, counts padding among the landmarks and starts all inverses of a batch from
one number; its other start fails to be configured (transformers 5.23) and is set on the layers.
"""

from typing import Any

import pytest
import torch
from transformers import NystromformerConfig, NystromformerForMaskedLM

from kinformer.members.nystromformer import nystromformer
from kinformer.models.mlm import MLM
from tests.parity.peers import agree, agree_on_what_is_hidden, copy_weights, gradient, shaken, small
from tests.parity.test_hf_bert import put_encoder

VOCAB, D, DEPTH, HEADS, LENGTH, LANDMARKS, KERNEL = 19, 24, 2, 4, 24, 6, 5


def peer(dtype: torch.dtype, norms: str = "head") -> NystromformerForMaskedLM:
    config = NystromformerConfig(
        vocab_size=VOCAB + 1,
        **small(D, DEPTH, HEADS),
        hidden_act="gelu",
        max_position_embeddings=LENGTH,
        pad_token_id=None,
        segment_means_seq_len=LENGTH,
        num_landmarks=LANDMARKS,
        conv_kernel_size=KERNEL,
    )
    model = shaken(NystromformerForMaskedLM(config).to(dtype).eval())
    read_rows_of(model, LENGTH, "exact" if norms == "head" else "original")
    return model  # type: ignore[return-value]


def read_rows_of(theirs: Any, length: int, start: str = "exact") -> None:
    for layer in theirs.nystromformer.encoder.layer:
        layer.attention.self.seq_len, layer.attention.self.init_option = length, start


def ours_like(theirs: NystromformerForMaskedLM, norms: Any = "head") -> MLM:
    model: Any = nystromformer(
        d=D, depth=DEPTH, heads=HEADS, landmarks=LANDMARKS, conv=KERNEL, norms=norms, length=LENGTH, vocab=VOCAB
    )
    model = model.to(theirs.dtype).eval()
    their, head = theirs.nystromformer, theirs.cls.predictions
    put_encoder(model, their.embeddings, their.encoder.layer, head.transform.dense, head.transform.LayerNorm)
    copy_weights(model.position.table, their.embeddings.position_embeddings.weight[2:])  # their positions begin at 2
    copy_weights(model.head, head.decoder.weight, head.decoder.bias)
    for block, layer in zip(model.body.layers, their.encoder.layer, strict=True):
        block.layers[0].mechanism.skip.weight.data.copy_(layer.attention.self.conv.weight.flatten(1))
    return model


@pytest.mark.parametrize("norms", ["head", "batch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits(dtype: torch.dtype, norms: str) -> None:
    theirs, tokens = peer(dtype, norms), torch.randint(0, VOCAB + 1, (3, LENGTH))
    ours = ours_like(theirs, norms)
    agree(ours.logits(tokens).y, theirs(input_ids=tokens).logits[..., :VOCAB])
    other = ours_like(theirs, "batch" if norms == "head" else "head")
    # where it starts matters
    assert not torch.allclose(ours.logits(tokens).y, other.logits(tokens).y, rtol=1e-3)


def test_padded_rows_are_what_theirs_reads_one_by_one() -> None:
    """Of lengths that the landmarks divide, which theirs wants, and of as many tokens as landmarks."""
    theirs, lengths = peer(torch.float64), (LENGTH, 2 * LANDMARKS, LANDMARKS)
    ours, tokens = ours_like(theirs), torch.randint(0, VOCAB, (3, LENGTH))
    for row, (length, left) in enumerate(zip(lengths, (0, 3, LENGTH - LANDMARKS), strict=True)):
        tokens[row, :left] = tokens[row, left + length :] = -1
    actual = ours.logits(tokens).y
    for row, length in enumerate(lengths):
        alone = tokens[row][tokens[row] >= 0][None]
        read_rows_of(theirs, length)
        agree(actual[row][tokens[row] >= 0][None], theirs(input_ids=alone).logits[..., :VOCAB])


def test_loss_and_gradients() -> None:
    theirs, tokens = peer(torch.float64), torch.randint(0, VOCAB, (3, LENGTH))
    ours: Any = ours_like(theirs)
    agree_on_what_is_hidden(ours, tokens, lambda read: theirs(input_ids=read).logits)
    block, their = ours.body.layers[0], theirs.nystromformer.encoder.layer[0].attention.self
    agree(gradient(block.layers[0].projection, "q"), their.query.weight.grad)
    agree(gradient(block.layers[0].projection, "k"), their.key.weight.grad)
    agree(block.layers[0].mechanism.skip.weight.grad, their.conv.weight.grad.flatten(1))
