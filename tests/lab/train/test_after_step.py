"""after_step: every module hears once, and of its own stats alone."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from kinformer.core.after_step import after_step, stats_beneath
from kinformer.core.patterns.causal import Causal
from kinformer.models.lm import LM
from kinformer.nn.attention import Attention
from kinformer.nn.blocks.pre_norm import PreNorm
from kinformer.nn.depth.stack import Stack
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.mechanisms.split import SplitHeads
from kinformer.nn.patterns.band import Band
from kinformer.nn.projections.qkv import QKV


class Told(nn.Module):
    """Writes down what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Tensor]] = []

    def after_step(self, progress: float, stats: Mapping[str, Tensor]) -> None:
        assert progress == 0.5 and not torch.is_grad_enabled()
        self.heard.append(dict(stats))


LM_STATS = ("3.0.seen", "3.0.1.sums", "30.0.seen", "all")
SEQ2SEQ_STATS = ("encoder.3.0.seen", "decoder.3.0.seen", "decoder.3.1.seen")


@pytest.mark.parametrize(
    ("names", "path", "expected"),
    [
        (LM_STATS, "", set(LM_STATS)),
        (LM_STATS, "body.layers.3", {"0.seen", "0.1.sums"}),
        (LM_STATS, "body.layers.3.layers.0.mechanism", {"seen", "1.sums"}),
        (LM_STATS, "body.layers.3.layers.0.mechanism.parts.1.centroids", {"sums"}),
        (LM_STATS, "body.layers.4.layers.0.mechanism", set()),
        (SEQ2SEQ_STATS, "decoder.layers.3.layers.0.mechanism", {"seen"}),
        (SEQ2SEQ_STATS, "decoder.layers.3", {"0.seen", "1.seen"}),
        (SEQ2SEQ_STATS, "encoder.layers.3.layers.1.mechanism", set()),
    ],
)
def test_a_module_gets_what_was_reported_at_its_place(names: tuple[str, ...], path: str, expected: set[str]) -> None:
    assert set(stats_beneath(path, {name: torch.tensor(1.0) for name in names})) == expected


def test_a_module_of_several_places_hears_once_of_their_sum() -> None:
    shared, own = Told(), Told()
    model = nn.ModuleList([shared, own, shared])
    after_step(model, 0.5, {f"{n}.seen": torch.tensor(10.0**n) for n in range(3)})
    assert shared.heard == [{"seen": torch.tensor(101.0)}] and own.heard == [{"seen": torch.tensor(10.0)}]


def test_each_layer_of_a_model_moves_its_own_centroids(float64: None) -> None:
    def block() -> PreNorm:
        return PreNorm(Attention(QKV(16, 4), SplitHeads(Softmax(Causal() & Band(2)), Routing(2, 4, 3, decay=0.5))))

    model = LM(11, 16, Stack([block(), block()]), penalties={"commitment": 0.01})
    loss = model(torch.randint(0, 11, (3, 9)))
    assert loss.parts["commitment"].item() > 0 and set(loss.stats) == {"0.0.1.clusters", "1.0.1.clusters"}
    routing = [layer.layers[0].mechanism.parts[1].centroids for layer in model.body.layers]
    expected = [part.update_average(loss.stats[f"{n}.0.1.clusters"]) for n, part in enumerate(routing)]
    after_step(model, 0.1, loss.stats)
    for part, mu in zip(routing, expected, strict=True):
        torch.testing.assert_close(part.mu, mu / mu.norm(dim=-1, keepdim=True), rtol=0, atol=1e-10)
    assert not torch.equal(expected[0], expected[1])
