"""Claims about windows, routing, sets of keys, local attention and narrow heads: what they measure, by loops."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.attention_output import AttentionOutput
from kinformer.core.discover import modules
from kinformer.core.patterns.full import Full
from kinformer.core.request import Request
from kinformer.lab.claims import (
    image_transformer_local,
    longformer_windows,
    low_rank_short_rows,
    routing_local_windows,
    routing_retrieval,
    sparse_transformer_sets,
)
from kinformer.lab.claims.support import byte_models, wave_pictures
from kinformer.lab.claims.support.byte_models import BitsCurve, TrainingSizes
from kinformer.lab.claims.support.claim_models import patterns
from kinformer.lab.claims.support.verdict import Claim
from kinformer.lab.data.text import TextData
from kinformer.lab.tasks.listops import Listops
from kinformer.lab.train.attention_hooks import reading_through
from kinformer.members.gpt import gpt
from kinformer.members.image_transformer import image_transformer
from kinformer.members.longformer_lm import longformer_lm
from kinformer.members.routing_transformer import routing_transformer
from kinformer.models.image import ImageModel
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.softmax import Softmax

LENGTH = 32
WINDOWS = (2, 4, 8)
SMALL: dict[str, Any] = {"d": 8, "depth": 2, "heads": 2}


def keys_of_last(model: Any, length: int = LENGTH) -> list[Tensor]:
    """The keys that the last query of a row reads, as a mask [head, key] of each layer."""
    heads = SMALL["heads"]
    return [torch.stack([pattern.matrix(length, h=h)[-1] for h in range(heads)]) for pattern in patterns(model)]


def curve(bits: float, seed: int) -> BitsCurve:
    return BitsCurve([1, 2], [bits + 1, bits + seed / 1000])


def by_window(make: Callable[[], Any], seed: int, *_: Any) -> BitsCurve:
    """Fewer bits the more keys a query reads."""
    return curve(3 - float(keys_of_last(make())[0].sum()) / 100, seed)


def by_growth(make: Callable[[], Any], seed: int, *_: Any) -> BitsCurve:
    """Fewer bits the more keys upper layers read, and the farther away."""
    layers = keys_of_last(make())
    growth = sum(n * float(keys.sum()) for n, keys in enumerate(layers))
    farthest = sum(LENGTH - int(keys.any(0).nonzero()[0]) for keys in layers)
    return curve(3 - growth / 100 - farthest / 1000, seed)


def by_sets(make: Callable[[], Any], seed: int, *_: Any) -> BitsCurve:
    """Fewer bits the more keys a query reads; strided sets are told by a key that lies a stride away."""
    (keys,) = (mask[0] for mask in keys_of_last(make())[:1])
    return curve(3 - float(keys.sum()) / 100 + bool(keys[-1 - 2 * sparse_transformer_sets.SIDE]), seed)


def without_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace each training by numbers at which every claim holds, and the sizes by small ones."""
    for module in (routing_local_windows, longformer_windows, sparse_transformer_sets):
        monkeypatch.setattr(module, "read_text", lambda where: None)
        monkeypatch.setattr(module, "TRAINING", TrainingSizes(1, 1e-3, LENGTH, 64))
    monkeypatch.setattr(routing_local_windows, "WINDOWS", WINDOWS)
    monkeypatch.setattr(routing_local_windows, "SIZES", {**SMALL, "routed": 0, "position": "rotary"})
    monkeypatch.setattr(routing_local_windows, "train_for_bits", by_window)
    arms = {
        "increasing": {"window": (2, 6)},
        "fixed": {"window": 4},
        "decreasing": {"window": (6, 2)},
        longformer_windows.GAPS: {"window": (2, 6), "dilation": (1, 2), "dilated": 1},
    }
    monkeypatch.setattr(longformer_windows, "ARMS", arms)
    monkeypatch.setattr(longformer_windows, "build", lambda arm: longformer_lm(**SMALL, top=None, **arms[arm]))
    monkeypatch.setattr(longformer_windows, "train_for_bits", by_growth)
    monkeypatch.setattr(longformer_windows, "dense_error", error_at_last(longformer_windows.dense_error))
    monkeypatch.setattr(sparse_transformer_sets, "SIDE", 4)
    monkeypatch.setattr(sparse_transformer_sets, "SIZES", {**SMALL, "stride": 4})
    monkeypatch.setattr(sparse_transformer_sets, "EQUAL", 1)
    monkeypatch.setattr(sparse_transformer_sets, "SUMMARIES", (1, 2, 3))
    monkeypatch.setattr(sparse_transformer_sets, "train_for_bits", by_sets)
    monkeypatch.setattr(sparse_transformer_sets, "train_on_pictures", pictures_of)
    monkeypatch.setattr(image_transformer_local, "SIZES", {**image_transformer_local.SIZES, "d": 8, "depth": 1})
    monkeypatch.setattr(image_transformer_local, "train_on_pictures", by_form)
    monkeypatch.setattr(routing_retrieval, "train_to_retrieve", retrieving)
    monkeypatch.setattr(low_rank_short_rows, "train_classifier", classifying)
    monkeypatch.setattr(Listops, "chance_accuracy", 0.1)  # takes two thousand rows


MEASURED: dict[str, dict[str, Any]] = {  # arguments of each claim beside its seeds
    "image_transformer_local": {},
    "longformer_windows": {"lengths": (512, 1024)},
    "low_rank_short_rows": {},
    "routing_local_windows": {},
    "routing_retrieval": {"lengths": (64, 256)},
    "sparse_transformer_sets": {},
}


def measure(name: str) -> Claim:
    claim: Claim = modules("claims")[name].claim((0, 1), **MEASURED[name])
    return claim


def sparse_attention(monkeypatch: pytest.MonkeyPatch) -> dict[str, Claim]:
    """Each claim of this file at small sizes, without its trainings."""
    without_training(monkeypatch)
    return {name: measure(name) for name in MEASURED}


def error_at_last(measure: Callable[..., float]) -> Callable[..., float]:
    """The error of attention in a short row, which takes no time."""
    return lambda model, tokens: measure(model, tokens[:, :64])


def by_form(form: str, seed: int, *_: Any) -> BitsCurve:
    return curve(2 + (form == "1d"), seed)


def pictures_of(sets: dict[str, Any], seed: int, *_: Any) -> BitsCurve:
    return curve(2 + (sets["attention"] == "fixed"), seed)


def retrieving(arm: str, seed: int, steps: int) -> routing_retrieval.RetrievalRun:
    accuracy = 0.3 if "routing" in arm else 0.2
    return routing_retrieval.RetrievalRun(
        [1, steps], [0.1, accuracy + seed / 1000], 90.0 if "routing" in arm else 100.0
    )


def classifying(rank: int, seed: int, steps: int) -> low_rank_short_rows.ShortRowRun:
    return low_rank_short_rows.ShortRowRun(0.5 - rank / 1000 + seed / 1000, 1.0)


def test_claims_hold_of_what_they_describe(monkeypatch: pytest.MonkeyPatch) -> None:
    results = sparse_attention(monkeypatch)
    assert {name: x.verdict for name, x in results.items()} == dict.fromkeys(results, "holds")


def spoil_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member whose window is the same whatever it is told."""
    monkeypatch.setattr(
        routing_local_windows, "routing_transformer", lambda local, **sizes: routing_transformer(local=4, **sizes)
    )


def spoil_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that reads pixels that are not generated yet."""

    def make(**sizes: Any) -> ImageModel:
        model = image_transformer(**sizes)
        for part in model.modules():
            if isinstance(part, Softmax):
                part.pattern = Full()
        return model

    monkeypatch.setattr(image_transformer_local, "image_transformer", make)


def spoil_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member with clusters of 16 tokens at any length, as many as the row needs."""

    def make(**sizes: Any) -> Any:
        if "window" in sizes:
            sizes |= {"window": 64, "clusters": sizes["clusters"] ** 2 // 64}
        return routing_transformer(**sizes)

    monkeypatch.setattr(routing_retrieval, "routing_transformer", make)


@pytest.mark.parametrize(
    ("name", "spoil"),
    [
        pytest.param("routing_local_windows", spoil_windows, id="one window"),
        pytest.param("image_transformer_local", spoil_images, id="pixels ahead"),
        pytest.param("routing_retrieval", spoil_routing, id="clusters of one size"),
    ],
)
def test_a_fault_of_the_member_is_seen(
    name: str, spoil: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    without_training(monkeypatch)
    assert measure(name).verdict == "does not hold"


def test_windows_that_do_not_order_the_bits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    without_training(monkeypatch)

    def opposite(make: Callable[[], Any], seed: int, *_: Any) -> BitsCurve:
        return curve(3 - by_growth(make, seed).bits[-1], seed)

    monkeypatch.setattr(longformer_windows, "train_for_bits", opposite)
    verdicts = [x.verdict for x in measure("longformer_windows").measures]
    assert verdicts == ["does not hold"] * 3 + ["holds"] * 2


def test_tiles_that_differ_from_dense_attention_are_seen() -> None:
    def read(name: str, request: Request, executor: Any) -> AttentionOutput:
        output: AttentionOutput = executor.read(request)
        return output._replace(y=output.y * (1.001 if name == "pieces" else 1))

    model, tokens = longformer_lm(**SMALL, window=4, top=None, dilation=2, dilated=1), torch.randint(256, (1, 64))
    assert 0 < longformer_windows.dense_error(model, tokens) < longformer_windows.EQUAL
    with reading_through(read):
        assert longformer_windows.dense_error(model, tokens) > longformer_windows.EQUAL


def test_windows_of_all_arms_have_equal_sums() -> None:
    sums = [
        {
            sum(int(pattern.matrix(300, h=h)[-1].sum()) for pattern in patterns(longformer_windows.build(arm)))
            for h in (0, 3)
        }
        for arm in longformer_windows.ARMS
    ]
    assert sums == [{sum(longformer_windows.GROWING)}] * len(sums)


def test_memory_of_dense_attention_is_not_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(longformer_windows, "build", lambda arm: longformer_lm(**SMALL, window=4, top=None))
    linear = longformer_windows.memory_by_length("", 0, (256, 512))
    monkeypatch.setattr(longformer_windows, "build", lambda arm: dense(longformer_lm(**SMALL, window=4, top=None)))
    square = longformer_windows.memory_by_length("", 0, (256, 512))
    assert linear[1] / linear[0] < 2.1 < 3 < square[1] / square[0]


def dense(model: Any) -> Any:
    for part in model.modules():
        if isinstance(part, Softmax):
            part.impl = "reference"
    return model


@torch.no_grad()
def test_products_are_counted_by_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing_retrieval, "SIZES", {**SMALL, "heads": 4, "length": routing_retrieval.TASK.width})
    monkeypatch.setattr(routing_retrieval, "COMPARED", 2)
    model = routing_retrieval.build("routing and local").eval()
    (part,) = (part for part in model.modules() if isinstance(part, Routing))
    seen: list[Any] = []
    part.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    result = routing_retrieval.products_per_query(model, "routing and local")
    queries, keys = seen[0][:2]
    rows, heads, length, _ = queries.q.shape
    count = 0
    for b in range(rows):
        for h in range(heads):
            q, k = (torch.nn.functional.normalize(part.normalise(x[b, h]), dim=-1) for x in (queries.q, keys.k))
            nearest_q, nearest_k = ((x @ part.centroids.mu[h].T).argmax(-1).tolist() for x in (q, k))
            count += sum(nearest_q[i] == nearest_k[j] for i in range(length) for j in range(i + 1))
            count += 2 * length * routing_retrieval.CLUSTERS
    local = 6 * sum(min(i + 1, routing_retrieval.WINDOWS["routing and local"]) for i in range(length))
    assert heads == 2 and result == pytest.approx((count / rows + local) / length)
    whole = routing_retrieval.products_per_query(routing_retrieval.build("full"), "full")
    assert whole == pytest.approx(8 * (length + 1) / 2)


def test_a_model_that_does_not_retrieve_better_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    without_training(monkeypatch)

    def swapped(arm: str, seed: int, steps: int) -> routing_retrieval.RetrievalRun:
        run = retrieving(arm, seed, steps)
        return run._replace(accuracy=[0.1, 0.3 - run.accuracy[-1]])

    monkeypatch.setattr(routing_retrieval, "train_to_retrieve", swapped)
    first, second, third = measure("routing_retrieval").measures
    assert [first.verdict, second.verdict, third.verdict] == ["does not hold", "holds", "holds"]


def test_sets_of_equal_cost_have_about_as_many_pairs() -> None:
    strided, fixed = (sparse_transformer_sets.pairs(sets) for sets in sparse_transformer_sets.SETS.values())
    by_hand = 0
    for i in range(256):
        by_hand += len({j for j in range(i + 1) if j // 16 == i // 16 or j % 16 >= 14})
    assert fixed == by_hand and fixed == pytest.approx(strided, rel=0.1)


def test_sets_that_do_not_order_the_bits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    without_training(monkeypatch)

    def opposite(make: Callable[[], Any], seed: int, *_: Any) -> BitsCurve:
        return curve(3 - by_sets(make, seed).bits[-1], seed)

    monkeypatch.setattr(sparse_transformer_sets, "train_for_bits", opposite)
    verdicts = [x.verdict for x in measure("sparse_transformer_sets").measures]
    assert verdicts == ["holds"] + ["does not hold"] * 3


def test_derivatives_are_those_of_changed_pixels() -> None:
    """By changing one value at a time: the steps whose distribution changes have a derivative."""
    sizes: dict[str, Any] = {"shape": (1, 4, 4), "d": 8, "depth": 1, "heads": 2, "norm": "pre"}
    for form in image_transformer_local.FORMS:
        some = {"block": 4, "memory": 2} if form == "1d" else {"tile": (2, 2), "around": (1, 1)}
        model = image_transformer(form=form, **sizes, **some).eval()
        result = image_transformer_local.jacobian(model, 0)
        steps = model.rows(wave_pictures.wave_pictures(1, 4, 0)).long()
        for j in range(16):
            other = steps.clone()
            other[0, j] = (other[0, j] + 7) % 256
            changed = (model.predict(steps) - model.predict(other)).abs().amax(-1)[0] > 0
            assert torch.equal(changed, result[:, j] > 0)
        assert float(result.triu().max()) == 0 < float(result.tril(-1).max())


def test_both_forms_of_local_attention_read_as_many_pixels() -> None:
    one, two = image_transformer_local.FORMS["1d"], image_transformer_local.FORMS["2d"]
    (down, across), (above, beside) = two["tile"], two["around"]
    assert one["block"] == down * across
    assert one["block"] + one["memory"] == (above + down) * (across + 2 * beside) == image_transformer_local.MEMORY


def test_waves_are_pictures_of_few_levels() -> None:
    pictures = wave_pictures.wave_pictures(200, 8, 1)
    assert pictures.shape == (200, 1, 8, 8) and len(pictures.unique()) <= wave_pictures.LEVELS
    assert len({picture.numpy().tobytes() for picture in pictures}) == 200
    near = [(pictures.double().diff(dim=dim).abs()).mean().item() for dim in (2, 3)]
    far = (pictures[:100].double() - pictures[100:].double()).abs().mean().item()
    assert near[0] == pytest.approx(near[1], rel=0.2) and max(near) < far / 2
    assert not torch.equal(pictures, wave_pictures.wave_pictures(200, 8, 2))


def test_a_classifier_learns_from_few_rows_and_is_tested_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank_short_rows, "LEARNED", 16)
    monkeypatch.setattr(low_rank_short_rows, "JUDGED", 24)
    monkeypatch.setattr(low_rank_short_rows, "RATE", 1e-2)
    sizes = {**low_rank_short_rows.SIZES, "d": 32, "head_dim": 16}
    monkeypatch.setattr(low_rank_short_rows, "SIZES", sizes)
    learned, judged = low_rank_short_rows.split_rows(0)
    rows = [{tuple(row) for row in batch.tokens.tolist()} for batch in (learned, judged)]
    assert len(learned.tokens) == 16 and len(judged.tokens) == 24 and not rows[0] & rows[1]
    run = low_rank_short_rows.train_classifier(4, 0, 60)
    assert run.train > run.test and run.train > 0.6


def test_wide_keys_that_classify_better_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_rank_short_rows, "train_classifier", lambda rank, seed, _: classifying(64 - rank, seed, 0))
    assert low_rank_short_rows.claim((0, 1)).verdict == "does not hold"


def test_models_of_one_seed_start_alike_and_are_trained() -> None:
    tokens = torch.randint(256, (400,), dtype=torch.uint8)
    text = TextData("random", tokens, tokens, tokens)
    sizes = TrainingSizes(2, 1e-3, 16, 64)
    runs = [byte_models.train_for_bits(lambda: gpt(**SMALL, length=16), 0, 4, text, sizes) for _ in range(2)]
    assert runs[0] == runs[1] and runs[0].steps == [1, 2, 3, 4] and 6 < runs[0].bits[-1] < 12
    assert byte_models.describe_values([1.0, 2.0]) == "1.5000 ± 1.0000 (1.0000, 2.0000)"
