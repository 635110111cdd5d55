"""Claims: verdicts by their rule, what is measured by loops, and the command."""

import ast
import inspect
import math
from collections import deque
from typing import Any

import pytest
import torch

from kinformer.core.discover import modules
from kinformer.lab.claims import (
    agent_memory,
    average_attention_steps,
    bigbird_paths,
    blockbert_memory,
    calm_confidences,
    calm_guarantee,
    calm_half_easy,
    clustered_error,
    decision_transformer_asked,
    decision_transformer_delayed,
    decision_transformer_key_to_door,
    decision_transformer_paths,
    depth_adaptive_exits,
    gtrxl_gate_bias,
    gtrxl_identity,
    gtrxl_solves,
    informer_probsparse,
    knn_lm_datastore,
    linformer_spectrum,
    luna_packs,
    memory_compressed_length,
    nystromformer_landmarks,
    performer_features,
    poolingformer_reach,
    set_transformer_maximum,
    spalm_names,
    sparse_transformer_reach,
    synthesizer_positions,
)
from kinformer.lab.claims.knn_lm_datastore import IN_DOMAIN, OUT_OF_DOMAIN
from kinformer.lab.claims.support import decoding_steps
from kinformer.lab.claims.support.agents import LearningCurve
from kinformer.lab.claims.support.claim_models import HeadInputs, heads
from kinformer.lab.claims.support.half_easy import TextLosses
from kinformer.lab.claims.support.verdict import Claim, Measure
from kinformer.lab.cost.cost import cost
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.plot import slope
from kinformer.members.average_attention import average_attention
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.set_transformer import set_transformer
from kinformer.models.support.mixing_sweeps import WEIGHTS, SweepChoice, SweepResult
from kinformer.nn.maps.favor import FAVOR
from kinformer.nn.maps.trigonometric import Trigonometric
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.patterns.band import Band
from kinformer.pages.plots import draw_plot
from tests.lab.claims.test_depth_and_heads import depth_and_heads
from tests.lab.claims.test_memories_and_lengths import memories_and_lengths
from tests.lab.claims.test_on_heads import on_heads
from tests.lab.claims.test_positions_and_memory import positions_and_memory
from tests.lab.claims.test_reformer import hashing_and_sharing
from tests.lab.claims.test_rfa import random_features
from tests.lab.claims.test_sparse_attention import sparse_attention
from tests.lab.claims.test_steps_and_positions import steps_and_positions

SPREAD = (0.9, 1.0, 1.1)  # a mean of 1, twice its standard error is 0.115


@pytest.mark.parametrize(
    ("measure", "verdict"),
    [
        (Measure("", SPREAD, "least", 0.5), "holds"),
        (Measure("", SPREAD, "most", 0.5), "does not hold"),
        (Measure("", SPREAD, "least", 1.05), "not resolved"),
        (Measure("", SPREAD, "least", 0.95), "not resolved"),  # met, but by less than two standard errors
        (Measure("", SPREAD, "least", 0.95, no_effect=0.0), "holds"),
        (Measure("", SPREAD, "most", 1.2, no_effect=2.0), "holds"),
        (Measure("", SPREAD, "most", 1.2, no_effect=1.1), "not resolved"),
        (Measure("", (1.0,), "least", 1.0), "does not hold"),  # no effect, which no further seed can change
        (Measure("", (1.0, 1.0), "most", 1.0), "does not hold"),
        (Measure("", (1.0,), "least", 1.0, no_effect=0.5), "holds"),
        (Measure("", (1.0,), "near", 1.0), "holds"),
        (Measure("", (0.99,), "least", 1.0), "does not hold"),
        (Measure("", SPREAD, "near", 1.0, within=0.2), "holds"),
        (Measure("", SPREAD, "near", 1.0, within=0.1), "not resolved"),
        (Measure("", SPREAD, "near", 2.0, within=0.2), "does not hold"),
    ],
)
def test_the_verdict_follows_the_threshold_and_two_standard_errors(measure: Measure, verdict: str) -> None:
    assert measure.verdict == verdict


def test_a_claim_holds_where_all_its_measures_do() -> None:
    good, bad, open_ = (Measure("", SPREAD, "least", at) for at in (0.5, 1.5, 1.05))

    def verdict(*measures: Measure) -> str:
        return Claim("", "", measures, {}, ()).verdict

    assert [verdict(good, good), verdict(good, open_), verdict(good, open_, bad)] == [
        "holds",
        "not resolved",
        "does not hold",
    ]


def test_a_power_is_found() -> None:
    assert slope((10, 100, 1000), (20, 20 * 10**1.5, 20 * 10**3)) == pytest.approx(1.5)


def searched(near: torch.Tensor) -> list[list[int]]:
    """The lengths of all shortest paths, breadth first from each node."""
    result = []
    for start in range(len(near)):
        far, queue = {start: 0}, deque([start])
        while queue:
            node = queue.popleft()
            for other in near[node].nonzero()[:, 0].tolist():
                if other not in far:
                    far[other] = far[node] + 1
                    queue.append(other)
        result.append([far[n] for n in range(len(near))])
    return result


def test_paths_are_those_of_a_search() -> None:
    pattern = bigbird_paths.graphs(1)["window and random blocks"]
    matrix = pattern.matrix(40)
    lengths = torch.tensor(searched(matrix | matrix.T)).double()
    result = bigbird_paths.paths(pattern, 40)
    assert result.mean == pytest.approx(float(lengths.sum()) / (40 * 39)) and result.diameter == lengths.max()
    assert bigbird_paths.paths(Band(1), 10) == (pytest.approx(11 / 3), 9)
    assert bigbird_paths.paths(Band(0), 4).diameter == float("inf")


def test_reach_is_what_is_known_after_so_many_layers() -> None:
    for form in sparse_transformer_reach.FORMS:
        pair = sparse_transformer_reach.factors(form, 16, 2)
        assert len(pair) == 2
        reached = [{i} for i in range(16)]
        for pattern in pair:
            matrix = pattern.matrix(16)
            reached = [set.union(reached[i], *(reached[j] for j in range(16) if matrix[i, j])) for i in range(16)]
        result = sparse_transformer_reach.reachable_keys(pair, 16)
        assert [set(row.nonzero()[:, 0].tolist()) for row in result] == reached
        assert sparse_transformer_reach.share(pair, 16) == 1
        assert sparse_transformer_reach.share(pair[:1], 16) < 1  # one set alone does not
    with pytest.raises(ValueError, match="read ahead"):
        sparse_transformer_reach.share([Band(1)], 4)


def test_what_a_step_keeps_is_counted_once_and_is_what_cost_counts() -> None:
    """`cost` looks at the tensors that are alive, a block at what it hands to the backward."""
    for blocks in (1, 2):
        model, tokens = blockbert_memory.build_model(blocks, 48), torch.randint(256, (2, 48))
        result = blockbert_memory.saved_bytes(model, tokens)
        assert result == pytest.approx(cost(model, 2, 48).activations, rel=1e-3)
        assert result > 2 * 48 * sum(size for size in (4 * 192, 12 * 192) for _ in range(2))


def test_the_paper_s_equation_by_blocks_is_dense_attention_under_its_mask() -> None:
    q, k, v = torch.randn(3, 1, 12, 24, 4, dtype=torch.float64)
    far = torch.arange(24)[None] // 8 - torch.arange(24)[:, None] // 8
    shift = torch.tensor([0] * 8 + [1] * 2 + [2] * 2)[:, None, None]
    scores = (q @ k.mT / 2).masked_fill(far % 3 != shift, -torch.inf)
    torch.testing.assert_close(blockbert_memory.by_blocks(q, k, v, 3), scores.softmax(-1) @ v)


@pytest.mark.parametrize("positive", [True, False])
def test_the_error_of_features_is_that_of_the_paper(positive: bool) -> None:
    """Of independent directions, whose squared error is known: in expectation, and one estimate by hand."""
    width, draws, angles = performer_features.WIDTH, 20_000, (105, 150)
    make = FAVOR if positive else Trigonometric
    options = {"eps": 0.0} if positive else {}
    map = make(width, 4 * draws, orthogonal=False, **options)
    result = performer_features.error(map, 4, angles)
    for angle, x in zip(angles, result.tolist(), strict=True):
        assert x == pytest.approx(performer_features.expected(positive, 4, angle), rel=0.2)
    x, y = (performer_features.vectors((angle,))[0, 0, 0] / width**0.25 for angle in (0, 150))
    directions = map.directions.double().view(draws, 4, width)
    if positive:
        by_hand = (directions @ (x + y) - 1).exp().mean(1)
    else:
        by_hand = math.e * (directions @ (x - y)).cos().mean(1)
    expected = (by_hand - (x @ y).exp()).square().mean()
    assert result[1].item() == pytest.approx(expected.item(), rel=1e-6)


def test_energy_is_counted_from_the_largest_value() -> None:
    values = torch.tensor([[3.0, 2.0, 1.0], [1.0, 0.0, 0.0]])  # squares: 9, 4, 1
    assert linformer_spectrum.cumulative_share(values)[0].tolist() == pytest.approx([9 / 14, 13 / 14, 1])
    assert linformer_spectrum.count_needed(values).tolist() == [2, 1]
    assert linformer_spectrum.count_needed(values, 0.95).tolist() == [3, 1]
    model, rows = bert(d=8, depth=2, heads=2, length=5, vocab=11), torch.randint(0, 11, (3, 5))
    read = heads(model, rows)
    assert len(read) == 2 and read[0].q.shape == (3, 2, 5, 4) and not torch.equal(read[0].q, read[1].q)
    assert linformer_spectrum.spectra(model, rows).shape == (12, 5)


def test_errors_of_clustered_attention_are_those_of_its_rows() -> None:
    ((q, k),) = clustered_error.random_heads(0, 6)
    result = clustered_error.errors(q, k, (1,), 0)
    row = q.mean(2, keepdim=True) @ k.mT / q.shape[-1] ** 0.5
    apart = (row.softmax(-1) - (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)).abs().sum(-1)
    torch.testing.assert_close(result["plain"][0], apart.flatten())
    # eight best keys are all six
    assert float(result["improved"][0].max()) < 1e-12 < float(apart.min())


def test_the_queries_that_a_sample_finds_are_counted() -> None:
    """By the exact measure all of them, by its opposite none."""
    model, _ = informer_probsparse.train_informer("probsparse", 0, 1)
    batch = informer_probsparse.series(3, 5)
    rate, share = informer_probsparse.hits(model, batch)
    assert share < rate < 1 and share == 25 / 96
    (layer, *_) = (part for part in model.encoders[0].modules() if isinstance(part, ProbSparse))
    exact = ProbSparse(measure="max-mean")
    for sign in (1, -1):
        layer.measure_sparsity = lambda request, sign=sign: sign * exact.measure_sparsity(request)  # type: ignore[method-assign, misc]
        assert informer_probsparse.hits(model, batch)[0] == (sign + 1) / 2


def slots(model: Any, length: int) -> float:
    """Numbers of keys and values that are kept of a row, by all layers."""
    return memory_compressed_length.cache_bytes(model, length) / 4


def test_what_decoders_keep_of_a_row_is_what_their_layers_may_read() -> None:
    built = memory_compressed_length.decoders(1024)
    tokens, token = 1000, 2 * memory_compressed_length.WIDTH  # a key and a value
    near, far = memory_compressed_length.BLOCK, tokens // 3 + 1 + 2  # the block; groups, one more slot, an open group
    layers = {"gpt": 5 * tokens, "LMLML": 3 * near + 2 * far, "MMMMM": 5 * far}
    assert {name: slots(make(), tokens) for name, make in built.items()} == {n: token * at for n, at in layers.items()}
    assert memory_compressed_length.seconds(built["LMLML"](), torch.randint(256, (1, 16))) > 0


def found_or_not(name: str, seed: int, length: int, steps: int) -> poolingformer_reach.NeedleCurve:
    return poolingformer_reach.NeedleCurve([0, steps], [0.1, 0.99 if name == "pooled keys" else 0.1])


def test_the_needle_lies_where_one_model_reaches_alone() -> None:
    """Layers one above the other, by what the answer's place learns of the place of the needle."""
    length = 40
    makes = poolingformer_reach.models(length)
    for name, reached in zip(makes, (True, False, False), strict=True):
        model = makes[name]().eval()
        x = torch.randint(0, 256, (1, length))
        other = x.clone()
        other[0, 4] = (x[0, 4] + 1) % 256  # after "key=" at the begin
        apart = (model.logits(x).y - model.logits(other).y)[0, -1].abs().max()  # type: ignore[attr-defined]
        assert bool(apart > 0) is reached
    learnt = poolingformer_reach.train_on_needle("window only", 0, 16, 1)
    assert learnt.steps == [1] and 0 <= learnt.accuracy[0] <= 1


def test_sets_are_told_by_the_mean_of_their_kinds() -> None:
    built = luna_packs.sets(3, torch.Generator().manual_seed(0))
    for x, above in zip(built.x, built.above, strict=True):
        kind, number = x[:, :-1].argmax(1), x[:, -1]
        for i in range(len(x)):
            same = [float(number[j]) for j in range(len(x)) if kind[j] == kind[i]]
            assert bool(above[i]) is (sum(same) / len(same) > 0)
    assert 0 <= luna_packs.accuracy(2, 0, 1) <= 1


def test_landmarks_of_every_token_are_softmax_attention_and_fewer_are_no_better_than_the_best_of_their_rank() -> None:
    result = nystromformer_landmarks.measure_errors(HeadInputs(*torch.randn(3, 1, 2, 64, 4).unbind()), (4, 48, 64))
    assert result.error[2] < 1e-12 and result.best[2] < 1e-6
    assert result.error[0] > result.best[0] and result.error[1] > result.best[1] > 1e-6
    assert result.left == sorted(result.left, reverse=True)


def unread(kinds: Any, question: str, seed: int, steps: int) -> tuple[Any, float]:
    """A reader that nobody trained, and the share of right answers that the claim expects."""
    return synthesizer_positions.RecallReader(kinds), 1.0 if question == "place" or "product" in kinds else 0.3


def test_a_step_s_work_is_counted() -> None:
    row = torch.randint(64, (1, 40))
    models = average_attention(d=8, depth=1, vocab=64), gpt(d=8, depth=1, heads=2, vocab=64)
    flat, growing = ([decoding_steps.step(model, row[:, :length]) for length in (4, 40)] for model in models)
    assert flat[0] == flat[1] and growing[0][0] < growing[1][0] and growing[0][1] < growing[1][1]
    assert decoding_steps.stepwise_error(models[0], row) < 1e-12


def test_questions_by_place_and_by_content_are_answered_as_they_say() -> None:
    pairs = synthesizer_positions.PAIRS
    for question in ("place", "content"):
        keys, values, answers = synthesizer_positions.batch(question, 5, torch.Generator().manual_seed(0))
        assert keys.shape == values.shape == (5, 2 * pairs) and bool((values[:, pairs:] == 0).all())
        for row, of, expected in zip(keys.tolist(), values.tolist(), answers.tolist(), strict=True):
            assert len(set(row[:pairs])) == pairs and set(row[:pairs]) == set(row[pairs:])
            reached = dict(zip(row[:pairs], of, strict=False))
            by_place = [of[pairs - 1 - i] for i in range(pairs)]
            answer = by_place if question == "place" else [reached[key] for key in row[pairs:]]
            assert [value + 1 for value in expected] == answer


def test_a_random_synthesizer_s_looks_are_the_most_of_all_heads() -> None:
    model = synthesizer_positions.RecallReader(("random",))
    tables = [block.layers[0].mechanism.score.table.softmax(-1) for block in model.body.layers]
    assert torch.equal(
        synthesizer_positions.largest_weights(model), torch.maximum(*(table.amax(0) for table in tables))
    )


@pytest.mark.prove
def test_every_claim_that_lies_in_the_folder_can_be_measured_and_drawn(monkeypatch: Any) -> None:
    from matplotlib.figure import Figure

    monkeypatch.setattr(calm_half_easy, "run", lambda *_: calm_half_easy.HalfEasyResult(2.0, 0.01, [3.0, 1.0], 0.5))
    monkeypatch.setattr(
        calm_guarantee, "table", lambda *_: [TextLosses([n / 40] * 9, [0.0] * 9, 2.0, []) for n in range(11)]
    )
    speeds = {
        name: calm_confidences.Speed(2.0 - n, 3.0, 0.01) for n, name in enumerate((calm_confidences.BEST, "other"))
    }
    monkeypatch.setattr(calm_confidences, "speeds", lambda *_: speeds)
    monkeypatch.setattr(luna_packs, "accuracy", lambda packs, seed, steps: 0.5 + packs / 40)  # trainings take minutes
    monkeypatch.setattr(poolingformer_reach, "train_on_needle", found_or_not)
    monkeypatch.setattr(linformer_spectrum, "rows_of", lambda length: torch.randint(256, (2, length)))  # so does text
    for name, value in (("train_on_text", 4.0), ("by_frequency", 5.0), ("train_and_test", 1.0)):
        monkeypatch.setattr(linformer_spectrum, name, lambda *_, value=value: value)
    monkeypatch.setattr(clustered_error, "ROWS", 2)
    for module in (decision_transformer_asked, decision_transformer_delayed):
        monkeypatch.setattr(module, "EPISODES", 8)
        monkeypatch.setattr(module, "PLAYED", 1)
    monkeypatch.setattr(
        decision_transformer_asked, "mean_return", lambda model, spec, count, question, seed: question or 9.0
    )
    monkeypatch.setattr(decision_transformer_delayed, "mean_return", lambda *_: decision_transformer_delayed.LEVEL + 50)
    shares = {"chance": 0.1, **dict.fromkeys(decision_transformer_key_to_door.LEARNERS, 0.3), "cloning of all": 0.1}
    shares["asked for 1, context of two steps"] = 0.2
    monkeypatch.setattr(decision_transformer_key_to_door, "measure_success", lambda *_: shares)
    monkeypatch.setattr(decision_transformer_paths, "WALKS", 60)
    fewest = decision_transformer_paths.distances
    monkeypatch.setattr(
        decision_transformer_paths, "paths", lambda _, links, question: fewest(links)[1:] + (question is None)
    )
    untaken = depth_adaptive_exits.ExitResult(1.0, 2.0, 1.5, 0.99, 0.99)
    monkeypatch.setattr(depth_adaptive_exits, "measure_exits", lambda *_: untaken)
    monkeypatch.setattr(depth_adaptive_exits, "DRAWS", 9)
    monkeypatch.setattr(depth_adaptive_exits, "JUDGED", 4)
    monkeypatch.setattr(
        gtrxl_gate_bias, "train_reader", lambda b_g, *_: gtrxl_gate_bias.RepeatLearning([0.9] * (3 - int(b_g)))
    )
    for x in (agent_memory, gtrxl_solves):
        monkeypatch.setattr(x, "train_agent", acted)
    monkeypatch.setattr(
        knn_lm_datastore, "domains", lambda: {IN_DOMAIN: (near := parts(0), near, near), OUT_OF_DOMAIN: (parts(1),) * 3}
    )
    monkeypatch.setattr(knn_lm_datastore, "train_byte_model", lambda *_: None)
    monkeypatch.setattr(knn_lm_datastore, "sweep_datastore", swept_or_not)
    looks = {"Transformer-XL": 3.0, "with kNN-LM": 2.0, "SPALM": 1.0}
    monkeypatch.setattr(spalm_names, "measure_seed", lambda *_: spalm_names.SpalmResult(looks, looks, 0.5, 0.1, 2.0))
    monkeypatch.setattr(set_transformer_maximum, "train_on_sets", untrained)
    monkeypatch.setattr(memory_compressed_length, "seconds", lambda model, tokens: slots(model, tokens.shape[1]) / 10)
    monkeypatch.setattr(nystromformer_landmarks, "ROWS", 8)
    monkeypatch.setattr(nystromformer_landmarks, "train_and_test", lambda *_: 1.0)  # takes a training
    monkeypatch.setattr(synthesizer_positions, "train_reader", unread)
    result = {
        **depth_and_heads(monkeypatch),
        **memories_and_lengths(monkeypatch),
        **on_heads(monkeypatch),
        **positions_and_memory(monkeypatch),
        **hashing_and_sharing(monkeypatch),
        **random_features(monkeypatch),
        **sparse_attention(monkeypatch),
        **steps_and_positions(),
        "agent_memory": agent_memory.claim((0, 1)),
        "average_attention_steps": average_attention_steps.claim((0, 1), lengths=(4, 16)),
        "bigbird_paths": bigbird_paths.claim((0, 1), sizes=(16, 32)),
        "blockbert_memory": blockbert_memory.claim((0, 1), blocks=(3,), lengths=(384,)),
        "calm_confidences": calm_confidences.claim((0, 1)),
        "calm_guarantee": calm_guarantee.claim((0, 1), sets=20),
        "calm_half_easy": calm_half_easy.claim((0, 1)),
        "clustered_error": clustered_error.claim((0, 1), clusters=(1, 8, 64), length=64, steps=0),
        "decision_transformer_asked": decision_transformer_asked.claim((0, 1), steps=1),
        "decision_transformer_delayed": decision_transformer_delayed.claim((0, 1), steps=1),
        "decision_transformer_key_to_door": decision_transformer_key_to_door.claim((0, 1)),
        "decision_transformer_paths": decision_transformer_paths.claim((0, 1), steps=1),
        "depth_adaptive_exits": depth_adaptive_exits.claim((0, 1), steps=0, classifier_steps=0),
        "gtrxl_gate_bias": gtrxl_gate_bias.claim((0, 1)),
        "gtrxl_identity": gtrxl_identity.claim((0, 1), deepest=4, d=32),
        "gtrxl_solves": gtrxl_solves.claim((0, 1)),
        "informer_probsparse": informer_probsparse.claim((0, 1), steps=1, learned=2.0),
        "knn_lm_datastore": knn_lm_datastore.claim((0, 1)),
        "linformer_spectrum": linformer_spectrum.claim((0, 1), length=16),
        "luna_packs": luna_packs.claim((0, 1), lengths=(256, 512)),
        "memory_compressed_length": memory_compressed_length.claim((0, 1), lengths=(512, 2048)),
        "nystromformer_landmarks": nystromformer_landmarks.claim((0, 1), landmarks=(2, 90), lengths=(64, 128)),
        "performer_features": performer_features.claim((0, 1), draws=200, orthogonal_draws=5000),
        "poolingformer_reach": poolingformer_reach.claim((0, 1)),
        "set_transformer_maximum": set_transformer_maximum.claim((0, 1)),
        "spalm_names": spalm_names.claim((0, 1)),
        "sparse_transformer_reach": sparse_transformer_reach.claim((0, 1), lengths=(64, 256), steps=0),
        "synthesizer_positions": synthesizer_positions.claim((0, 1)),
    }
    assert set(result) == set(modules("claims"))
    # a GRU gate with b_g = 2 keeps 0.88 of the stream, and a block has two
    verdicts = {**dict.fromkeys(result, "holds"), "gtrxl_identity": "does not hold"}
    assert {name: x.verdict for name, x in result.items()} == verdicts
    for x in result.values():
        assert x.statement and x.source and x.plots
        assert x.verdict != "does not hold" or "the paper's scale" in x.facts
        for plot in x.plots:
            draw_plot(plot, Figure().subplots())


def acted(stack: str, spec: str, seed: int, *_: Any, **_keywords: Any) -> LearningCurve:
    success = 0.5 if "Band(0)" in stack or "post_norm" in stack else 0.99 + seed / 1000
    return LearningCurve((10, 20), (0.0, success), (0.1, success), 7)


def untrained(of: dict[str, Any], *_: Any) -> set_transformer_maximum.TrainedSets:
    error = 0.1 if "inducing" in of else 0.2
    model = set_transformer(**of).eval()
    torch.nn.init.ones_(model.head.bias)  # an answer near 0 would be far off by its rounding, over its own size
    return set_transformer_maximum.TrainedSets(model, error, {1: error, 2: error})


@pytest.mark.prove
def test_a_set_transformer_tells_the_largest() -> None:
    assert set_transformer_maximum.claim((0, 1), rates=(3e-3,), steps=200).verdict == "holds"


def test_claims_say_at_which_rate_they_train() -> None:
    """The rate of a member's own recipe may change, and with it what a claim finds, which no test would see."""
    for name, module in modules("claims").items():
        for call in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "fit":
                assert "lr" in {inputs.arg for inputs in call.keywords}, f"{name}, line {call.lineno}: give lr="


def parts(first: int) -> SplitTokens:
    return SplitTokens(torch.full((9,), first, dtype=torch.uint8))


def swept_or_not(
    model: None, parts: tuple[SplitTokens, ...], size: int, judged: int
) -> knn_lm_datastore.DatastoreSweep:
    """Lower with more entries and more neighbours; the best share is larger away, and with more entries."""
    best = 0.5 if bool(parts[0].tokens[0]) else 0.25 if size < knn_lm_datastore.BYTES else 0.3
    bits = {
        SweepChoice(k, 1.0, weight): 3 - k / 1e3 - size / 1e5 - 1 * (weight == best)
        for k in knn_lm_datastore.KS
        for weight in WEIGHTS
    }
    return knn_lm_datastore.DatastoreSweep(SweepResult(4.0, bits), SweepResult(4.0, bits))


def test_names_are_marked_where_they_stand() -> None:
    toy = spalm_names.toy(3, 5)
    answer = bytes(toy.text.test.tolist())
    inside = bytes(byte for byte, name in zip(answer, toy.names.tolist(), strict=True) if name)
    named = [x.split()[-1] for x in answer.decode().split(". ")[:-1]]
    assert inside.decode() == "".join(named) and len(set(named)) == 5
    assert all(bytes(toy.text.train.tolist()).count(name.encode()) == spalm_names.TIMES for name in named)


@pytest.mark.prove
def test_spalm_and_knn_lm_are_measured_as_they_are(monkeypatch: Any) -> None:
    monkeypatch.setattr(spalm_names, "SIZES", {**spalm_names.SIZES, "d": 8, "depth": 1, "std": None})
    result = spalm_names.measure_seed(0, people=6, steps=1)
    assert list(result.bits) == ["Transformer-XL", "with kNN-LM", "SPALM"] and 0 < result.at_names < 1
    assert result.names.keys() == {"Transformer-XL", "SPALM"} and max(result.names.values()) < 10
    monkeypatch.setattr(knn_lm_datastore, "read_text", lambda where: spalm_names.toy(0, 60).text)
    monkeypatch.setenv(knn_lm_datastore.MORE, "more.txt")
    texts = knn_lm_datastore.domains()
    assert list(texts) == [IN_DOMAIN, OUT_OF_DOMAIN, "more.txt"]
    model = knn_lm_datastore.train_byte_model(0, texts[IN_DOMAIN][0], 1)
    swept = knn_lm_datastore.sweep_datastore(model, texts[IN_DOMAIN], 300, 100)
    assert all(swept.tuned_bits(k) < swept.test.own for k in knn_lm_datastore.KS)
