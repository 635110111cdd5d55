"""Compressive Transformer, the member: which loss trains what, its chunks, how it decodes, what its keywords make."""

import copy
import math
from typing import Any

import pytest
import torch

from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.segment import Segment
from kinformer.decoding.generate import generate
from kinformer.members.compressive_transformer import compressive_transformer
from kinformer.models.lm import LM
from kinformer.nn.losses.compression import AttentionReconstruction, AutoEncoding
from kinformer.nn.memories.compression import DilatedConv, MaxPool, MeanPool, MostUsed, StridedConv
from kinformer.nn.memories.compressive import Compressive

pytestmark = pytest.mark.usefixtures("float64")


def small(**keywords: Any) -> LM:
    shape = {"d": 16, "depth": 2, "heads": 2, "segment": 4, "memory": 4, "compressed": 2, "rate": 2, "vocab": 11}
    return compressive_transformer(**{**shape, **keywords})


def trained_by(model: LM, loss: torch.Tensor) -> set[str]:
    names, weights = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    return {name for name, g in zip(names, gradients, strict=True) if g is not None and bool(g.any())}


@pytest.mark.parametrize(
    ("keywords", "trained"),
    [
        ({"compression": "conv"}, {"compression.down.weight", "compression.down.bias"}),
        (
            {"compression": "conv", "loss": "autoencoding"},
            {"compression.down.weight", "compression.down.bias", "loss.decoder.weight", "loss.decoder.bias"},
        ),
        (
            {"compression": "dilated"},
            {f"compression.{part}.{kind}" for part in ("wide.0", "wide.1", "down") for kind in ("weight", "bias")},
        ),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_the_compression_loss_moves_the_compressions_and_the_text_all_else(
    keywords: dict[str, str], trained: set[str]
) -> None:
    model = small(**keywords).train()
    state = model.start(2, 40)
    state = model(torch.randint(0, 11, (2, 18)), state).state  # both queues hold what the compression has made
    loss = model(torch.randint(0, 11, (2, 16)), state)
    (name,) = loss.parts.keys() - {"nll"}
    everything = {name for name, _ in model.named_parameters()}
    compressions = {f"body.layers.{n}.layers.0.memory.{part}" for n in range(2) for part in trained}
    assert trained_by(model, loss.parts[name]) == compressions
    assert trained_by(model, loss.parts["nll"]) == everything - compressions
    assert trained_by(model, loss.total) == everything
    assert loss.parts[name] > 0


def test_it_writes_the_same_with_its_state_as_without_one() -> None:
    model, prompt = small(), torch.randint(0, 11, (3, 9))
    written = generate(model, prompt, 12, temperature=0)
    assert torch.equal(written, generate(model, prompt, 12, temperature=0, recompute=True))


def test_its_keywords_choose_the_compression_and_the_loss() -> None:
    kinds = {"mean": MeanPool, "max": MaxPool, "conv": StridedConv, "dilated": DilatedConv, "most_used": MostUsed}
    for name, kind in kinds.items():
        learned: dict[str, type] = {"attention": AttentionReconstruction, "autoencoding": AutoEncoding}
        choices = [({"loss": loss}, expected_part) for loss, expected_part in learned.items()]
        for keywords, expected_part in choices if name in ("conv", "dilated") else [({}, type(None))]:
            memory = small(compression=name, **keywords).body.layers[1].layers[0].memory
            assert isinstance(memory, Compressive) and isinstance(memory.compression, kind)
            assert type(memory.loss) is expected_part
    assert small().lanes


@pytest.mark.parametrize("loss", ["attention", "autoencoding"])
def test_the_loss_of_what_learns_is_added_to_that_of_the_text(loss: str) -> None:
    out = small(loss=loss).train()(torch.randint(0, 11, (2, 18)))
    (name,) = out.parts.keys() - {"nll"}
    assert torch.allclose(out.total, out.parts["nll"] + out.parts[name]) and out.parts[name] > 0
    assert small(compression="mean").penalties == {}
    with pytest.raises(TypeError, match="reconstruction"):
        small(reconstruction=0.25)


@pytest.mark.parametrize("memory", [0, 3])
def test_a_memory_shorter_than_a_segment_trains_the_compression_too(memory: int) -> None:
    model = small(memory=memory).train()
    out = model(torch.randint(0, 11, (2, 18)))
    assert "body.layers.1.layers.0.memory.compression.down.weight" in trained_by(model, out.total)
    assert out.parts["attention_reconstruction"] > 0


def test_it_counts_slots_as_the_paper_does_or_tokens() -> None:
    patterns = [small(count=count).body.layers[0].layers[0].mechanism.pattern for count in ("slots", "tokens")]
    assert patterns == [Causal() & Segment(4, 4 + 2), Causal() & Segment(4, 4 + 4)]
    assert small().body.layers[0].layers[0].mechanism.pattern == patterns[0]


@torch.no_grad()
def test_its_first_loss_is_that_of_knowing_nothing() -> None:
    """A25: a post-norm stack hands a token its own logit of sqrt(d) times its embedding's length: 9.5 nats of 5.5."""
    torch.manual_seed(0)
    nll = compressive_transformer().train()(torch.randint(0, 256, (2, 129))).parts["nll"]
    assert float(nll) == pytest.approx(math.log(256), rel=0.1)


def test_in_bfloat16_it_compresses_by_what_was_used_most() -> None:
    """The loss is that of float64 from the same rounded weights, up to rounding."""
    model = compressive_transformer(
        d=16, depth=2, heads=2, segment=4, memory=4, compressed=4, rate=2, vocab=11, compression="most_used"
    ).bfloat16()
    tokens = torch.randint(11, (2, 30))
    with torch.no_grad():
        loss, exact = float(model(tokens).total), float(copy.deepcopy(model).double()(tokens).total)
    assert abs(loss - exact) < 0.02 * exact
