"""Set Transformer: a number said of a set by hand, no norms, any order of elements, and the cost of pairs."""

from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.parameter_noise import add_parameter_noise
from tests.members.probes import count, multi_head

pytestmark = pytest.mark.usefixtures("float64")

D = 8
SMALL: dict[str, Any] = {"d": D, "depth": 1, "heads": 2, "inducing": 3, "seeds": 2, "decoder": 1, "inputs": 2}


def mab(block: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """MAB(X, Y) = LN(H + rFF(H)), H = LN(X + MHA(X, Y, Y))."""
    attention, mlp = block.layers
    h = F.layer_norm(x + multi_head(attention, x, y), (D,), *block.norms[0].parameters())
    return F.layer_norm(h + mlp.down(mlp.up(h).relu()), (D,), *block.norms[1].parameters())


def check(model: kf.SetRegressor) -> None:
    """head(SAB(PMA_2(ISAB_3(X)))): ISAB(X) = MAB(X, MAB(I, X)), PMA(Z) = MAB(S, rFF(Z)), SAB(X) = MAB(X, X)."""
    add_parameter_noise(model)
    elements, _, _ = model.eval().sample(1, 6, 0)
    answer = model.predict(elements.double(), torch.zeros(1, 6, dtype=torch.long))
    x = model.embedding(elements[0].double())
    isab, pma, (sab,) = model.body.layers[0], model.pooling, model.decoder.layers
    z = mab(isab.spreads, x, mab(isab.gathers, isab.point, x))
    pooled = mab(pma.block, pma.seed, pma.feedforward.down(pma.feedforward.up(z).relu()))
    torch.testing.assert_close(answer[0], model.head(mab(sab, pooled, pooled).flatten())[0])


def test_it_is_the_papers_encoder_and_decoder() -> None:
    check(kf.set_transformer(**SMALL))


@pytest.mark.parametrize("fault", ["points", "seeds"])
def test_points_or_seeds_that_read_themselves_are_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements read the inducing points as these were before they read the set; or seeds add nothing of themselves."""
    model = kf.set_transformer(**SMALL)
    if fault == "points":
        induce = kf.ISAB.induce
        monkeypatch.setattr(
            kf.ISAB, "induce", lambda self, x, ctx: induce(self, x, ctx)._replace(y=self.point.expand(len(x), -1, -1))
        )
    else:
        forward = kf.PMA.forward
        monkeypatch.setattr(kf.PMA, "forward", lambda self, y, real: forward(self, y, real) - self.seed.flatten())
    with pytest.raises(AssertionError):
        check(model)


@pytest.mark.parametrize("keywords", [{}, {"inducing": None}, {"form": "published"}, {"pooling": "max"}])
def test_the_order_of_elements_does_not_matter_and_each_of_them_does(keywords: dict[str, Any]) -> None:
    sizes = {key: value for key, value in SMALL.items() if key != "seeds" or "pooling" not in keywords}
    model = kf.set_transformer(**{**sizes, **keywords}).eval()
    add_parameter_noise(model)
    elements, marks = torch.randn(1, 7, 2), torch.zeros(1, 7, dtype=torch.long)
    order = torch.tensor([6, 2, 0, 4, 1, 5, 3])
    torch.testing.assert_close(model.predict(elements[:, order], marks), model.predict(elements, marks))
    encoded = model.encode(elements, marks).y[0]
    torch.testing.assert_close(model.encode(elements[:, order], marks).y[0], encoded[order])
    for n in range(7):
        changed = elements.clone()
        changed[0, n] += 3.0
        assert not torch.allclose(model.encode(changed, marks).y[0, (n + 1) % 7], encoded[(n + 1) % 7], atol=1e-9)


def test_elements_that_read_alone_hear_nothing_of_one_another() -> None:
    model = kf.set_transformer(d=D, depth=2, encoder="alone", pooling="mean", decoder=0, inputs=2).eval()
    elements, marks = torch.randn(1, 5, 2), torch.zeros(1, 5, dtype=torch.long)
    alone = [model.encode(elements[:, n : n + 1], marks[:, :1]).y[0, 0] for n in range(5)]
    torch.testing.assert_close(model.encode(elements, marks).y[0], torch.stack(alone))


def test_inducing_points_cost_one_block_more_and_m_vectors() -> None:
    pairs, points = (count(kf.set_transformer(**{**SMALL, "inducing": inducing})) for inducing in (None, 3))
    assert points - pairs == (12 * D * D + 13 * D) + 3 * D
