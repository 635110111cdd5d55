"""Retrieved keys and depths: equal to a search by loops, and to what the model reports."""

import math
from typing import Any

import pytest
import torch
from torch import nn

import kinformer as kf
from kinformer.core.neighbours import Entries
from kinformer.lab.look import look
from kinformer.models.nearest_neighbour_lm import NearestNeighbourLM
from kinformer.models.spalm import SPALM

TEXT = bytes(3 * n * n % 11 for n in range(30))


def with_large_weights(model: Any) -> Any:
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.4)
    return model.eval()


def test_a_memory_gives_the_keys_of_the_highest_products() -> None:
    torch.manual_seed(0)
    segment, memory, k = 5, 7, 3
    model = with_large_weights(
        kf.memorizing_transformer(d=16, depth=2, heads=2, segment=segment, memory=memory, k=k, vocab=11)
    ).double()
    name, layer = next(
        (name, part)
        for name, part in model.named_modules()
        if isinstance(getattr(part, "mechanism", None), kf.Retrieval)
    )
    mechanism = layer.mechanism
    with torch.no_grad():
        mechanism.gate.copy_(torch.tensor([0.3, -1.0]))
        mechanism.head_scale.copy_(torch.tensor([2.0, -3.0]))
    inputs: list[torch.Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    seen = look(model, TEXT)
    hook.remove()
    keys = seen.retrieved[name]
    assert keys.places.shape == (2, 30, k) and keys.weights is not None and keys.share is not None
    assert keys.distances is None and not keys.texts
    matrix = layer.projection.qkv
    with torch.no_grad():
        qkv = (inputs[0][0] @ matrix.weight.T + matrix.bias).unflatten(1, (3, 2, 8))
    unit = qkv / (qkv.square().sum(-1, keepdim=True) + mechanism.eps).sqrt()
    for h, scale in enumerate((2.0, 3.0)):
        for i in range(30):
            start = i // segment * segment  # the memory ends where the segment of the query begins
            scores = {j: scale * float(unit[i, 0, h] @ unit[j, 1, h]) for j in range(max(start - memory, 0), start)}
            best = sorted(scores, key=lambda j: -scores[j])[:k]
            assert [place for place in keys.places[h, i].tolist() if place >= 0] == best
            total = sum(math.exp(scores[j]) for j in best)
            weights = [math.exp(scores[j]) / total for j in best] + [0.0] * (k - len(best))
            assert keys.weights[h, i].tolist() == pytest.approx(weights, abs=1e-6)
            gate = 1 / (1 + math.exp(-(0.3, -1.0)[h])) if best else 0.0
            assert float(keys.share[h, i]) == pytest.approx(gate)


def make_store(model: Any, count: int = 40) -> Entries:
    torch.manual_seed(3)
    return Entries(torch.randn(count, 16), torch.arange(count) % 11)


def test_a_datastore_gives_the_entries_of_the_smallest_distances() -> None:
    torch.manual_seed(0)
    lm = with_large_weights(kf.gpt(d=16, depth=2, heads=2, vocab=11))
    store = make_store(lm)
    model = NearestNeighbourLM(lm, store, "1.1.input", k=6, weight=0.4, temperature=7.0)
    seen = look(model, TEXT)
    keys = seen.retrieved[""]
    assert "find_neighbours" not in vars(model)  # the record ends with the look
    states: list[torch.Tensor] = []
    hook = lm.body.layers[1].layers[1].register_forward_pre_hook(lambda _, given: states.append(given[0]))
    with torch.no_grad():
        log_p = model.logits(torch.tensor([list(TEXT)])).y[0]
    hook.remove()
    assert keys.places.shape == (1, 30, 6) and keys.weights is not None and keys.distances is not None
    for t in range(30):
        distances = {n: float((states[0][0, t] - key).square().sum()) for n, key in enumerate(store.keys)}
        best = sorted(distances, key=lambda n: distances[n])[:6]
        assert keys.places[0, t].tolist() == best
        assert keys.distances[0, t].tolist() == pytest.approx([distances[n] for n in best], rel=1e-4)
        exps = [math.exp(-distances[n] / 7.0) for n in best]
        assert keys.weights[0, t].tolist() == pytest.approx([value / sum(exps) for value in exps], rel=1e-3)
    assert keys.share is not None and keys.share.unique().tolist() == pytest.approx([0.4])
    nearest = int(keys.places[0, 20, 0])
    text = keys.texts[nearest]
    order = [n % 11 for n in range(40)]
    assert text.next == bytes([order[nearest]])
    assert text.before == bytes(order[max(nearest - 12, 0) : nearest])
    assert text.after == bytes(order[nearest + 1 : nearest + 7])
    assert seen.bits is not None
    bits = [-float(log_p[t, TEXT[t + 1]]) / math.log(2) for t in range(29)]
    assert seen.bits[1:].tolist() == pytest.approx(bits, rel=1e-4)


def test_spalm_reports_distances_and_the_share_of_its_gate() -> None:
    torch.manual_seed(0)
    frozen = with_large_weights(kf.gpt(d=16, depth=1, heads=2, vocab=11))
    body = kf.Stack([kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16))])
    model = SPALM(11, 16, body, frozen=frozen, store=make_store(frozen), tap="0", k=3)
    seen = look(model, TEXT)
    keys = seen.retrieved[""]
    with torch.no_grad():
        gate = model.hidden(torch.tensor([list(TEXT)])).aux["gate"][0]
    assert keys.weights is None and keys.share is not None and keys.distances is not None
    torch.testing.assert_close(keys.share[0], 1 - gate)
    assert bool((keys.distances.diff(dim=-1) >= 0).all()) and keys.places.shape == (1, 30, 3)


@pytest.mark.parametrize(("name", "report"), [("universal_transformer", "steps"), ("depth_adaptive", "exit")])
def test_models_with_adaptive_depth_give_the_depth_of_each_token(name: str, report: str) -> None:
    torch.manual_seed(0)
    model = with_large_weights(getattr(kf, name)(d=16, heads=2, vocab=11))
    seen = look(model, TEXT)
    with torch.no_grad():
        aux = model.logits(torch.tensor([list(TEXT)])).aux
    assert list(seen.depths) == [report]
    torch.testing.assert_close(seen.depths[report], aux[report][0].float())
    assert seen.depths[report].min() >= 1
    assert not look(with_large_weights(kf.gpt(d=16, depth=1, heads=2, vocab=11)), TEXT).depths
