"""SPALM against a loop over the paper's equations, in float64; what it leaves out in training, and what it holds."""

import copy
import math

import pytest
import torch
from jaxtyping import Int
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.layer import Context
from kinformer.core.neighbours import Entries, Neighbours
from kinformer.decoding.generate import generate
from kinformer.members.gpt import gpt
from kinformer.members.transformer_xl import transformer_xl
from kinformer.models.lm import LM
from kinformer.models.spalm import SPALM, PieceIndex, own_runs

LENGTH = 9


def text(length: int = 40) -> Int[Tensor, " N"]:
    return torch.randint(11, (length,), generator=torch.Generator().manual_seed(3))


def base(seed: int = 0) -> LM:
    torch.manual_seed(seed)
    return transformer_xl(d=16, depth=2, heads=2, segment=5, memory=4, vocab=11).double().eval()


def states(frozen: LM, row: Int[Tensor, " T"]) -> Tensor:
    ctx = Context(torch.arange(len(row))[None], run=True, full=True, taps=("1",))
    with torch.no_grad():
        return frozen.logits(row[None], None, ctx).taps["1"][0]


def spalm(frozen: LM, store: Entries, **options: object) -> SPALM:
    mine = base(1)
    return SPALM(11, 16, mine.body, frozen=frozen, store=store, tap="1", scale=4.0, **options).double()  # type: ignore[arg-type]


def of_text(frozen: LM, row: Int[Tensor, " T"]) -> Entries:
    return Entries(states(frozen, row[:-1]), row[1:])


@pytest.mark.parametrize(("k", "distance"), [(4, False), (4, True), (99, False)])
def test_the_equation_of_spalm(k: int, distance: bool) -> None:
    frozen = base()
    store, row = of_text(frozen, text()), text(7).flip(0)
    model = spalm(frozen, store, k=k, distance=distance).eval()
    with torch.no_grad():
        ours = model.logits(row[None]).y[0].softmax(-1)
        h = LM.hidden(model, row[None]).y[0]
    w, w_g, keys = model.head.weight.detach(), model.gate.weight.detach()[0], states(frozen, row)
    rate = float(model.log_rate.detach().exp()) if model.log_rate is not None else 0.0
    assert rate == pytest.approx(1 / 16 if distance else 0.0)
    for t in range(len(row)):
        away = [float(((key - keys[t]) ** 2).sum()) for key in store.keys]
        near = sorted(range(len(away)), key=lambda n: (away[n], n))[:k]
        scores = [float(h[t] @ w[store.tokens[n]]) - rate * away[n] for n in near]
        weights = [math.exp(score - max(scores)) for score in scores]
        m = sum(a * w[store.tokens[n]] for a, n in zip(weights, near, strict=True)) / sum(weights)
        g = 1 / (1 + math.exp(-float(w_g @ h[t])))
        z = (1 - g) * m + g * h[t]
        torch.testing.assert_close(ours[t], (w @ z).softmax(-1))


def test_in_training_a_row_finds_nothing_of_itself() -> None:
    """Where all that a store holds is the row, nothing is found, and z = h."""
    frozen, row = base(), text(LENGTH)
    model, plain = spalm(frozen, of_text(frozen, row)), LM(11, 16, base(1).body, scale=4.0).double()
    plain.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        output = model.train()(row[None])
        torch.testing.assert_close(output.total, plain.train()(row[None]).total)
        assert float(output.parts["gate"]) == 1.0
        assert float(model.eval()(row[None]).parts["gate"]) < 1.0


def test_what_is_left_out_is_the_row_and_no_more() -> None:
    whole, frozen = text(), base()
    store = of_text(frozen, whole)
    row = whole[10 : 10 + LENGTH]
    own = own_runs(PieceIndex(store.values()), TokenBatch(row[None]))
    assert own.tolist() == [[[[10, 10 + LENGTH - 1]]] * (LENGTH - 1)]
    model = spalm(frozen, store, k=5)
    keys = states(frozen, row[:-1])[None]
    real = torch.ones(1, LENGTH - 1, dtype=torch.bool)
    mine, every = model.find_neighbours(keys, real, own), model.find_neighbours(keys, real, None)
    outside = [n for n in range(len(store.tokens)) if not 10 <= n < 10 + LENGTH - 1]
    rest = Entries(store.keys[outside], store.tokens[outside]).search(keys[0], 5)
    assert mine.tokens[0].equal(rest.tokens)
    assert not every.places[0].equal(mine.places[0])


def test_rows_are_found_by_document_and_without_padding() -> None:
    whole = text()
    store = Entries(torch.zeros(39, 16), whole[1:])
    rows = torch.stack([torch.cat([whole[3:12], whole[20:30]]), torch.cat([torch.full((8,), -1), whole[8:19]])])
    documents = torch.tensor([[0] * 9 + [1] * 10, [0] * 19])
    runs = own_runs(PieceIndex(store.values()), TokenBatch(rows, None, documents))
    no_run = [[torch.iinfo(torch.long).max] * 2]
    assert runs[0].tolist() == [[[3, 11]]] * 9 + [[[20, 29]]] * 9
    assert runs[1].tolist() == [no_run] * 8 + [[[8, 18]]] * 10
    few = TokenBatch(rows[:, 8:13], None, documents[:, 8:13])
    every = [[0, torch.iinfo(torch.long).max]]
    assert own_runs(PieceIndex(store.values()), few).tolist() == [[no_run] + [every] * 3, [every] * 4], (
        "too short to be told"
    )


@pytest.mark.parametrize("size", [2, 5, 8, 9, 12])
def test_documents_of_any_length_find_nothing_of_themselves(size: int) -> None:
    """Each token's own entry is 0 away, and its value is the answer."""
    frozen, whole = base(), text(3 * size)
    model = spalm(frozen, of_text(frozen, whole[:size]), k=3).train()
    batch, real = TokenBatch(whole[None, :size]), torch.ones(1, size - 1, dtype=torch.bool)
    keys = states(frozen, whole[: size - 1])[None]
    assert float(model.find_neighbours(keys, real, None).distances[0, :, 0].abs().amax()) < 1e-12
    assert (model.find_neighbours(keys, real, own_runs(model.pieces, batch)).tokens < 0).all()


def test_a_row_that_repeats_itself_asks_for_no_more_than_it_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, whole = base(), torch.cat([text(20) % 4, torch.full((30,), 5)])
    store, requested = of_text(frozen, whole), list[int]()
    model, search = spalm(frozen, store, k=2), Entries.search
    monkeypatch.setattr(Entries, "search", lambda self, queries, k: (requested.append(k), search(self, queries, k))[1])
    with torch.no_grad():
        model.train()(whole[None, 30:45])
    assert requested == [30 + 2], "all of the thirty, where seventeen pieces of fourteen stand"


def test_a_step_of_training_reads_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, read = base(), list[int]()
    model, values = spalm(frozen, of_text(frozen, text())), Entries.values
    monkeypatch.setattr(Entries, "values", lambda self: (read.append(1), values(self))[1])
    with torch.no_grad():
        model.eval()(text(LENGTH)[None])
        assert not read
        for _ in range(3):
            model.train()(text(LENGTH)[None])
    assert read == [1]


def test_padding_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, counts = base(), list[int]()
    model, search = spalm(frozen, of_text(frozen, text())).eval(), Entries.search
    monkeypatch.setattr(
        Entries, "search", lambda self, queries, k: (counts.append(len(queries)), search(self, queries, k))[1]
    )
    with torch.no_grad():
        alone = model.logits(text(4)[None]).y
        padded = model.logits(torch.cat([torch.full((3,), -1), text(4)])[None]).y
    assert counts == [4, 4]
    torch.testing.assert_close(padded[:, 3:], alone)


@pytest.mark.parametrize("precision", ["autocast", "bfloat16"])
def test_scores_and_distances_are_in_float32_or_better(precision: str) -> None:
    """Distances of some hundreds, which bfloat16 would round by more than they differ."""
    frozen = base()
    model = spalm(frozen, of_text(frozen, text()), k=2, distance=True).float()
    h, neighbours = torch.randn(1, 1, 16), Neighbours(torch.tensor([[[800.0, 801.0]]]), torch.tensor([[[3, 4]]]), None)
    with torch.no_grad():
        model.log_rate.zero_()
        if precision == "bfloat16":
            h = h.bfloat16()
            model.bfloat16()
        expected = copy.deepcopy(model).float().mix_by_gate(h.float(), neighbours)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
            z, gate = model.mix_by_gate(h, neighbours)
    assert z.dtype == h.dtype and gate.dtype == torch.float32
    torch.testing.assert_close(gate, expected[1])
    torch.testing.assert_close(z, expected[0].to(h.dtype))


def test_keys_stay_and_embeddings_learn() -> None:
    frozen = base()
    before = {name: tensor.clone() for name, tensor in frozen.state_dict().items()}
    model = spalm(frozen, of_text(frozen, text()))
    model.train()
    assert not any(module.training for module in frozen.modules())
    assert not any(name.startswith(("frozen", "held")) for name in model.state_dict())
    model(text(12).flip(0)[None]).total.backward()
    gradients = {name: tensor.grad for name, tensor in model.named_parameters()}
    assert gradients["embedding.weight"].abs().sum() > 0 and gradients["gate.weight"].abs().sum() > 0
    assert all(tensor.grad is None for tensor in frozen.parameters())
    assert all(before[name].equal(tensor) for name, tensor in frozen.state_dict().items())
    assert model.float().frozen.embedding.weight.dtype == torch.float32


@pytest.mark.parametrize("distance", [False, True])
def test_gradients_are_those_of_the_equation(distance: bool) -> None:
    """Through h as it asks, as it is kept and as it is gated; through y as it answers and as it is given."""
    frozen, row = base(), text(7).flip(0)
    store = of_text(frozen, text())
    model = spalm(frozen, store, distance=distance).eval()
    ours = torch.autograd.grad(model(row[None]).total, list(model.parameters()))
    h, keys = LM.hidden(model, row[None]).y[0], states(frozen, row)
    z = []
    for t in range(len(row)):
        away = (store.keys - keys[t]).square().sum(1)
        near = away.argsort(stable=True)[:4]
        y = torch.stack([model.head.weight[token] for token in store.tokens[near]])
        scores = torch.stack([(vector * h[t]).sum() for vector in y])
        weights = (scores - (model.log_rate.exp() * away[near] if model.log_rate is not None else 0)).exp()
        m = sum(a * vector for a, vector in zip(weights / weights.sum(), y, strict=True))
        g = 1 / (1 + (-(model.gate.weight[0] * h[t]).sum()).exp())
        z.append((1 - g) * m + g * h[t])
    scores = torch.stack(z[:-1]) @ model.head.weight.T
    loss = (scores.logsumexp(1) - scores.gather(1, row[1:, None])[:, 0]).mean()
    for vector, expected in zip(ours, torch.autograd.grad(loss, list(model.parameters())), strict=True):
        torch.testing.assert_close(vector, expected)


def test_it_decodes_under_beam_search_as_it_reads() -> None:
    frozen = base()
    model = spalm(frozen, of_text(frozen, text())).eval()
    prompts = torch.tensor([[-1, -1, 3, 5], [1, 2, 3, 4]])
    cached = generate(model, prompts, 4, beam=3)
    assert generate(model, prompts, 4, beam=3, recompute=True).equal(cached)
    assert generate(model, prompts[:1, 2:], 4, beam=3).equal(cached[:1, 2:])


def test_what_cannot_be_is_refused() -> None:
    store = Entries(torch.zeros(3, 16), torch.arange(3))
    with pytest.raises(ValueError, match="vocab=11.*has 12"):
        spalm(gpt(d=16, depth=1, heads=2, length=8, vocab=12), store)
    with pytest.raises(ValueError, match="restarts at every window"):
        spalm(gpt(d=16, depth=1, heads=2, length=8, vocab=11), store, lanes=True)
    assert spalm(gpt(d=16, depth=2, heads=2, length=8, vocab=11), store).window == 8
