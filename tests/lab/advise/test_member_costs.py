"""The table of costs holds every member, and its numbers are counted again or follow from definitions."""

import math

import pytest

from kinformer.core.discover import members
from kinformer.lab.advise.member_costs import LENGTHS, count_keys, extrapolate, extrapolate_pairs, member_costs
from kinformer.lab.cost.cost import cost
from kinformer.lab.member_choice import parse_member

TABLE = member_costs()["members"]
SHORT, LONG = map(str, LENGTHS)


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
    assert TABLE[name]["parameters"] == counted.parameters
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
    for name in ("linear_transformer", "lstm", "reformer", "routing_transformer", "topk_transformer"):
        assert name in ("reformer", "routing_transformer") or TABLE[name]["keys"][LONG] is None, name


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
