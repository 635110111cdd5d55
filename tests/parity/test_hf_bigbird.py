"""BigBird against Hugging Face's on equal weights and equal random blocks: logits, loss and gradients.

Theirs draws no blocks outside training (it reads block 0 again in their place): either it is handed ours, or ours is
handed as tables what it drew in training.
"""

from typing import Any

import pytest
import torch
from transformers import BigBirdConfig, BigBirdForMaskedLM
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

from kinformer.core.pattern import Heads
from kinformer.core.patterns.blocks import Blocks
from kinformer.members.bigbird import bigbird
from kinformer.models.mlm import MLM
from kinformer.nn.patterns.published_random import PublishedRandom
from tests.parity.peers import agree, agree_on_what_is_hidden, copy_weights, gradient, shaken, small
from tests.parity.test_hf_bert import put_encoder

VOCAB, D, HEADS, DEPTH, BLOCK, KEYS, BLOCKS = 19, 24, 4, 2, 2, 2, 20
LENGTH = BLOCK * BLOCKS


@pytest.fixture
def our_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of their layer `seed`: for each head and query block but the first and the last, the blocks that ours reads."""

    def draws(self: Any, **sizes: Any) -> list[Any]:
        pattern = PublishedRandom(KEYS, seed=self.seed)
        blocks_drawn = [pattern.matrix(BLOCKS, h=h)[1:-1].nonzero()[:, 1] for h in range(sizes["num_heads"])]
        return [blocks.view(BLOCKS - 2, KEYS).numpy() for blocks in blocks_drawn]

    monkeypatch.setattr(BigBirdBlockSparseAttention, "_bigbird_block_rand_mask_with_head", draws)


def peer(dtype: torch.dtype) -> BigBirdForMaskedLM:
    config = BigBirdConfig(
        vocab_size=VOCAB + 1,
        **small(D, DEPTH, HEADS),
        hidden_act="gelu",
        max_position_embeddings=LENGTH,
        attention_type="block_sparse",
        block_size=BLOCK,
        num_random_blocks=KEYS,
        type_vocab_size=1,
        pad_token_id=None,
    )
    return shaken(BigBirdForMaskedLM(config).to(dtype).eval())  # type: ignore[return-value]


@pytest.fixture
def their_draws(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Of each of their layers, once it has read in training, the blocks that it drew, as our expression."""
    draws_by_shape: dict[int, str] = {}
    draw = BigBirdBlockSparseAttention._bigbird_block_rand_mask_with_head

    def noted(self: Any, **sizes: Any) -> list[Any]:
        blocks_drawn = draw(self, **sizes)
        tables = [((), *(tuple(map(int, blocks)) for blocks in head), ()) for head in blocks_drawn]
        draws_by_shape[self.seed] = repr(Heads(*(Blocks(table, BLOCK) for table in tables)))
        return blocks_drawn

    monkeypatch.setattr(BigBirdBlockSparseAttention, "_bigbird_block_rand_mask_with_head", noted)
    return draws_by_shape


def ours_like(theirs: BigBirdForMaskedLM, **random: Any) -> MLM:
    random = random or {"draw": "published", "keys": KEYS}
    model: Any = bigbird(d=D, depth=DEPTH, heads=HEADS, block=BLOCK, length=LENGTH, vocab=VOCAB, **random)
    model = model.to(theirs.dtype).eval()
    their, head = theirs.bert, theirs.cls.predictions
    model.body.layers = model.body.layer.layers  # where the helper looks for blocks
    put_encoder(model, their.embeddings, their.encoder.layer, head.transform.dense, head.transform.LayerNorm)
    copy_weights(model.position.table, their.embeddings.position_embeddings.weight)
    copy_weights(model.head, head.decoder.weight, head.decoder.bias)
    return model


@pytest.mark.usefixtures("our_draws")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits(dtype: torch.dtype) -> None:
    theirs, tokens = peer(dtype), torch.randint(0, VOCAB + 1, (3, LENGTH))
    agree(ours_like(theirs).logits(tokens).y, theirs(input_ids=tokens).logits[..., :VOCAB])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_logits_under_the_blocks_that_they_drew(dtype: torch.dtype, their_draws: dict[int, str]) -> None:
    theirs, tokens = peer(dtype).train(), torch.randint(0, VOCAB + 1, (3, LENGTH))
    expected = theirs(input_ids=tokens).logits[..., :VOCAB]
    tables = tuple(their_draws[layer] for layer in range(DEPTH))
    assert tables[0] != tables[1]
    agree(ours_like(theirs, tables=tables).logits(tokens).y, expected)
    assert not torch.allclose(ours_like(theirs).logits(tokens).y, expected, rtol=1e-3)  # other blocks are not enough


@pytest.mark.usefixtures("our_draws")
def test_loss_and_gradients() -> None:
    theirs, tokens = peer(torch.float64), torch.randint(0, VOCAB, (3, LENGTH))
    ours: Any = ours_like(theirs)
    agree_on_what_is_hidden(ours, tokens, lambda read: theirs(input_ids=read).logits)
    block, their = ours.body.layer.layers[0], theirs.bert.encoder.layer[0]
    agree(gradient(block.layers[0].projection, "k"), their.attention.self.key.weight.grad)
    agree(block.layers[1].down.weight.grad, their.output.dense.weight.grad)
