"""The table of costs holds every member, and its numbers are counted again or follow from definitions."""

import math
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch

from bench.member_costs import clean_commit
from kinformer.core.discover import members, modules
from kinformer.core.example import Example
from kinformer.lab.advise.member_costs import (
    LENGTHS,
    count_keys,
    extrapolate,
    extrapolate_pairs,
    member_costs,
    own_length,
)
from kinformer.lab.cost.cost import cost
from kinformer.lab.cost.row_costs import count_flops
from kinformer.lab.cost.temporal_range import remembered_by_layer
from kinformer.lab.look import look
from kinformer.lab.member_choice import parse_member

TABLE = member_costs()["members"]
SHORT, LONG = map(str, LENGTHS)
EXAMPLE = {"agent": 1, "average_attention": 1}  # the example with the kind of layers that the default has


def test_every_member_has_costs_at_both_lengths_or_at_its_own() -> None:
    assert sorted(TABLE) == sorted(members())
    for name, entry in TABLE.items():
        lengths = {str(entry["own_length"])} if "own_length" in entry else {SHORT, LONG}
        assert entry["flops"].keys() == entry["state"].keys() == entry["keys"].keys() == lengths, name
    # a cubic term, hashes of an untrained model, and a search over pairs that takes minutes
    unknown = {name for name, entry in TABLE.items() if None in entry["flops"].values()}
    assert unknown == {"csalr", "reformer", "sac", "sac_encoder"}


@pytest.mark.parametrize("name", ["gpt", "linear_transformer", "luna", "multi_query"])
def test_the_table_has_what_kinformer_cost_counts(name: str) -> None:
    counted = cost(parse_member(name, ()).build(0), 1, LENGTHS[0])
    assert TABLE[name]["parameters"] == counted.parameters and TABLE[name]["state"][SHORT] == counted.state
    assert TABLE[name]["flops"][SHORT] == round(counted.flops / LENGTHS[0])


def test_states_are_those_of_the_definitions() -> None:
    """Keys and values of d numbers per layer; a shared head of d / heads; a memory of hidden states."""
    gpt, shared = TABLE["gpt"]["state"], TABLE["multi_query"]["state"]
    for length in LENGTHS:
        per_layer = 2 * 128 * 4 * length  # two vectors of 128 float32 numbers
        assert gpt[str(length)] == pytest.approx(5 * per_layer, rel=0.01)
        assert shared[str(length)] == pytest.approx(5 * per_layer / 4, rel=0.02)
    fixed = ("linear_transformer", "performer", "rfa", "lstm", "transformer_xl", "compressive_transformer")
    for name in fixed:
        assert TABLE[name]["state"][SHORT] == TABLE[name]["state"][LONG], name
    for name in ("bert", "longformer", "linformer"):  # encoders
        assert TABLE[name]["state"][SHORT] is None


def test_dense_attention_grows_with_the_row_and_windows_do_not() -> None:
    for name in ("gpt", "bert", "llama", "realformer"):
        flops = TABLE[name]["flops"]
        assert flops[LONG] > 5 * flops[SHORT]
    for name in ("longformer", "transformer_xl", "linear_transformer", "linformer"):
        flops = TABLE[name]["flops"]
        assert flops[LONG] == pytest.approx(flops[SHORT], rel=0.05)
    # two products of 128 numbers with each of L keys in 5 layers: 4 * 128 * 5 operations per key
    gpt = TABLE["gpt"]["flops"]
    assert (gpt[LONG] - gpt[SHORT]) / (LENGTHS[1] - LENGTHS[0]) == pytest.approx(4 * 128 * 5, rel=1e-6)


def test_keys_per_query_follow_from_the_patterns() -> None:
    for length in LENGTHS:
        at = str(length)
        assert TABLE["gpt"]["keys"][at] == pytest.approx((length + 1) / 2, abs=0.1)
        assert TABLE["bert"]["keys"][at] == length
        # a window of 64 on both sides, which the ends cut, and a global token: its key for all, its row of all keys
        window = 129 - 64 * 65 / length
        outside = sum(1 for i in range(length) if i > 64) / length
        rows = (length - 65) / length
        assert TABLE["longformer"]["keys"][at] == pytest.approx(window + outside + rows, abs=0.1)
        assert TABLE["transformer_xl"]["keys"][at] == pytest.approx(64 + 65 / 2, abs=0.1)
    for name in ("linear_transformer", "lstm", "reformer", "routing_transformer", "topk_transformer", "nystromformer"):
        assert TABLE[name]["keys"] == {SHORT: None, LONG: None}, name


def test_keys_and_states_of_members_with_a_memory() -> None:
    """A segment of 64 tokens reads its own keys up to the query, and the memories before it."""
    for name in ("transformer_xl", "gtrxl", "spalm", "agent"):  # `agent` has the layers of transformer_xl
        assert TABLE[name]["keys"] == {SHORT: 64 + 65 / 2, LONG: 64 + 65 / 2}, name
        # keys and values of 128 numbers for the memory and the segment, in each layer
        layers = 4 if name == "gtrxl" else 5
        assert TABLE[name]["state"][LONG] == pytest.approx(layers * 128 * 2 * 128 * 4, rel=0.01), name
    # 64 tokens and 64 compressed tokens before the segment; the loss of the compression is no part of a forward pass
    assert TABLE["compressive_transformer"]["keys"][LONG] == 64 + 64 + 65 / 2
    # both parts of a head read the tokens of the band, which count once
    assert TABLE["low_rank_band"]["keys"] == {SHORT: 512.5, LONG: 8192.5}
    assert TABLE["adaptive_span"]["keys"][LONG] == 65


def test_losses_of_training_are_no_operations_of_a_forward_pass() -> None:
    """The second model of guided attention and the losses of the heads are there in training only."""
    assert TABLE["guided_attention"]["flops"] == TABLE["bert"]["flops"]
    small = ("depth=2", "d=16", "heads=2")
    guided, bert = (count_flops(parse_member(name, small).build(0), 24) for name in ("guided_attention", "bert"))
    assert guided == bert


def test_a_table_is_counted_at_a_commit(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        settings = ("-c", "user.name=n", "-c", "user.email=n@example.org")
        return run(["git", "-C", tmp_path, *settings, *words], capture_output=True, text=True, check=True).stdout

    git("init")
    table, code = tmp_path / "table.json", tmp_path / "code.py"
    table.write_text("{}")
    code.write_text("")
    git("add", ".")
    git("commit", "-m", "first")
    table.write_text('{"members": {}}')
    assert git("rev-parse", "HEAD").startswith(commit := clean_commit(tmp_path, table)) and len(commit) == 8
    code.write_text("x = 1")
    with pytest.raises(SystemExit, match=r"code.py has changes, .* commit them first"):
        clean_commit(tmp_path, table)
    code.write_text("")
    (tmp_path / "new.py").write_text("")
    with pytest.raises(SystemExit, match=r"new.py has changes"):
        clean_commit(tmp_path, table)


def test_every_entry_has_its_commit() -> None:
    assert all(entry["commit"] for entry in TABLE.values()) and "commit" not in member_costs()["on"]


@pytest.mark.parametrize("name", sorted(members()))
def test_no_query_reads_more_keys_than_there_are(name: str) -> None:
    """Small models, counted again; a decoder reads at most the tokens up to the query, and the keys of its memory."""
    example: Any = modules("members")[name].EXAMPLES[EXAMPLE.get(name, 0)]
    model = Example.from_entry(example).make()
    length = own_length(model) or 16
    keys = count_keys(model, length)
    assert (keys is None) == (next(iter(TABLE[name]["keys"].values())) is None)
    if keys is None:
        return
    if model.reads == "trajectories":
        length *= 3 if name == "decision_transformer" else 2  # returns, states and actions are tokens
    memories = remembered_by_layer(model)
    most = max((stored.memory + stored.compressed for stored in memories.values()), default=0)
    assert 1 <= keys <= most + ((length + 1) / 2 if model.reads == "text" else length)
    if model.reads in ("text", "masked", "labelled") and not memories:
        seen = look(model, torch.randint(0, 11, (length,)).tolist())
        if not seen.unseen:  # weights that are recomputed from the queries and keys
            maps = torch.cat([attention.flatten(0, 1) for attention in seen.maps.values()])
            assert keys == pytest.approx(float((maps > 0).sum(-1).float().mean()))


def test_keys_are_counted_in_layers_that_compute_their_own_scores() -> None:
    model = parse_member("realformer", ("depth=2", "d=16", "heads=2")).build(0)
    assert count_keys(model, 24) == 24


def test_a_quadratic_count_is_extrapolated_and_another_one_is_not() -> None:
    def counts(of):
        return {length: of(length) for length in (256, 512, 1024, 2048)}

    assert extrapolate(counts(lambda n: 7 * n + 3 * n * n), 16_384) == 7 * 16_384 + 3 * 16_384**2
    assert extrapolate(counts(lambda n: round(n * math.log2(n))), 16_384) is None
    assert extrapolate({256: 1, 512: 2}, 16_384) is None
    band = counts(lambda n: 65 * n - 64 * 65 / 2)
    assert extrapolate_pairs(band, 16_384) == pytest.approx(65 * 16_384 - 64 * 65 / 2)
    assert extrapolate_pairs(counts(lambda n: n * (n // 256 % 3)), 16_384) is None
    assert extrapolate_pairs({512: 1, 1024: 2, 2048: 3}, 16_384) is None
