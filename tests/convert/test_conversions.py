"""What every conversion keeps: its promise, the source, a plan of all tensors, and a saved folder."""

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.convert.support.changed_model import conversions
from kinformer.convert.support.conversion_plan import PlannedConversion, find_conversion
from kinformer.core.model import Model
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.llama import llama

LONGEST = 48  # tokens of a row in these tests


class Case(NamedTuple):
    """A conversion of a tiny model."""

    what: str
    options: dict[str, Any]
    source: Callable[[], Model]


def with_random_weights(model: Model) -> Model:
    """Weights of size one half in every tensor, so that biases and norms count; a trained length as after training."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        weight.data = torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.5
        if ".norm" in name and name.endswith("weight"):
            weight.data += 1
    model.double().trained_length = 64
    return model.eval()


def tiny_llama() -> Model:
    return with_random_weights(llama(d=16, depth=3, heads=4, key_heads=2, vocab=23))


def llama_with_one_pair() -> Model:
    return with_random_weights(llama(d=16, depth=2, heads=4, vocab=23, turned=2))


def tiny_gpt() -> Model:
    return with_random_weights(gpt(d=16, depth=2, heads=4, vocab=23, length=64))


def tiny_bert() -> Model:
    return with_random_weights(bert(d=16, depth=2, heads=2, vocab=23, length=64, mask=3))


CASES = (
    Case("talking_heads", {}, tiny_bert),
    Case("talking_heads", {"bias": True, "keep": (2,)}, tiny_llama),
    Case("topk_transformer", {"k": 3}, tiny_gpt),
    Case("pattern", {"pattern": "Band(9) | Tokens(2)"}, tiny_gpt),
    Case("Causal() & Band(20)", {}, tiny_llama),
    Case("Band(12)", {"keep": (1,)}, tiny_bert),
    Case("window", {"window": 12, "sinks": 3, "keep": (2,)}, tiny_llama),
    Case("window", {"window": 12, "sinks": 0}, tiny_gpt),
    Case("memory", {"segment": 6, "memory": 9, "sinks": 2}, tiny_gpt),
    Case("xl", {"segment": 6, "memory": 6, "sinks": 0}, tiny_llama),
    Case("transformer_xl", {"segment": 6, "memory": 0, "sinks": 3, "keep": (1,)}, tiny_llama),
    Case("memorizing", {"window": 6, "sinks": 2, "memory": 20, "k": 5}, tiny_llama),
    Case("memorizing", {"window": 3, "sinks": 1, "memory": 30, "k": 9, "layers": (1, 2)}, tiny_gpt),
    Case("heads", {"key_heads": 2}, tiny_llama),
    Case("heads", {"key_heads": 1}, tiny_llama),
    Case("heads", {"key_heads": 4}, tiny_gpt),
    Case("heads", {"key_heads": 2, "merge": "svd"}, tiny_gpt),
    Case("gqa", {}, tiny_gpt),
    Case("pi", {"factor": 2.0}, tiny_llama),
    Case("ntk", {}, tiny_llama),
    Case("ntk", {}, llama_with_one_pair),
    Case("pi", {}, llama_with_one_pair),
    Case("yarn", {"length": 12}, tiny_llama),
    Case("yarn", {"length": 12, "factor": 1.0}, tiny_llama),
    Case("learned", {"length": 20}, tiny_gpt),
    Case("learned", {"length": 20, "resize": "tiled"}, tiny_gpt),
    Case("learned", {"length": 20, "resize": "tiled"}, tiny_bert),
    Case("longformer", {"window": (20, 31), "marked": 1}, tiny_bert),
    Case("longformer", {}, tiny_bert),
    Case("bigbird", {"block": 4, "full_up_to": 0, "draw": "row"}, tiny_bert),
    Case("etc", {"radius": 20, "tokens": 3}, tiny_bert),
    Case("poolingformer", {"near": 20, "far": 30}, tiny_bert),
    Case("predictive_attention", {"size": 5}, tiny_bert),
    Case("predictive_attention", {"scores": "evolving", "alpha": 0.2}, tiny_bert),
    Case("memory", {"segment": 8, "memory": 16, "sinks": 2}, tiny_llama),
    Case("xl", {"segment": 8, "memory": 8, "sinks": 0, "keep": (1,)}, tiny_gpt),
    Case("memorizing", {"window": 6, "sinks": 2, "memory": 30, "k": 3}, tiny_llama),
    Case("yarn", {"factor": 1.0}, tiny_llama),
    Case("ntk", {"factor": 2.0}, tiny_llama),
    Case("learned", {"factor": 2.0}, tiny_gpt),
    Case("exits", {"threshold": 1.0}, tiny_llama),
    Case("calm", {"threshold": 0.0, "propagation": "copy"}, tiny_gpt),
    Case("retrieval", {}, tiny_llama),
    Case("knn_lm", {}, tiny_gpt),
    Case("linear", {"window": 6, "sinks": 3, "keep": (2,)}, tiny_llama),
    Case("hedgehog", {"window": 9, "sinks": 0, "features": 6}, tiny_gpt),
    Case("favor", {"window": 6, "sinks": 2, "map_seed": 5}, tiny_llama),
)


def planned(case: Case) -> PlannedConversion:
    return PlannedConversion.of(case.source(), find_conversion(case.what, case.options))


def outputs(model: Model, length: int) -> torch.Tensor:
    tokens = torch.randint(4, 23, (2, length), generator=torch.Generator().manual_seed(length))
    with torch.no_grad():
        y: torch.Tensor = model.logits(tokens).y  # type: ignore[operator]
    return y


def names() -> Iterator[str]:
    return (f"{case.what}-{n}" for n, case in enumerate(CASES))


READ_VALUES = {  # recipes that meta tensors, which have no values, do not suffice for
    "etc": "new layers take over rows of weights while they are built",
    "retrieval": "a reading of the model finds its last feed-forward layer",
    "knn_lm": "a reading of the model finds its last feed-forward layer",
}
each_case = pytest.mark.parametrize("case", CASES, ids=list(names()))


def test_every_recipe_has_a_case() -> None:
    tested: set[type] = {type(find_conversion(case.what, case.options)) for case in CASES}
    assert tested >= set(conversions().values())


def test_the_table_in_the_docs_lists_every_spelling() -> None:
    page = (Path(__file__).parents[2] / "docs" / "convert.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \|([^|]*)\|", page, re.MULTILINE))
    assert set(rows) == set(conversions())
    for name, recipe in conversions().items():
        spelled = set(re.findall(r"`(\w+)`", rows[name]))
        assert spelled == set(recipe.spellings), name


@each_case
def test_outputs_are_equal_as_far_as_promised(case: Case) -> None:
    plan = planned(case)
    promise, converted = plan.plan.promise, plan.carry_out()
    length = int(min(promise.length, LONGEST))
    if length:
        y = outputs(plan.source, length)
        torch.testing.assert_close(outputs(converted, length), y, rtol=1e-9, atol=1e-9 * float(y.abs().max()))
    if length < LONGEST:  # a promise is no larger and no smaller than what holds
        more = length + 1 if length else LONGEST  # a row of one token reads only itself
        assert not torch.allclose(outputs(converted, more), outputs(plan.source, more), rtol=1e-6)


@each_case
def test_the_source_stays_as_it_is(case: Case) -> None:
    source, twin = case.source(), case.source()
    converted = PlannedConversion.of(source, find_conversion(case.what, case.options)).carry_out()
    with torch.no_grad():
        for weight in converted.parameters():
            weight.add_(1)
    assert source.member == twin.member
    for name, tensor in source.state_dict().items():
        assert torch.equal(tensor, twin.state_dict()[name]), name


@each_case
def test_the_plan_accounts_for_every_number(case: Case) -> None:
    plan = planned(case)
    fates = plan.plan.fates
    made = sum(fate.parameters for fate in fates if fate.fate != "dropped")
    unique = {id(x): x.numel() for x in plan.converted.state_dict(keep_vars=True).values()}
    assert made == sum(unique.values())
    json.dumps(plan.plan.options)


@each_case
def test_a_saved_conversion_comes_back(case: Case, tmp_path: Any) -> None:
    converted = planned(case).carry_out()
    save(converted, tmp_path)
    back = load(tmp_path)
    assert back.member == converted.member and back.trained_length == converted.trained_length
    assert torch.equal(outputs(back, 20), outputs(converted, 20))


@each_case
def test_new_weights_are_on_the_device_of_the_source(case: Case) -> None:
    if case.what in READ_VALUES:
        pytest.skip(READ_VALUES[case.what])
    plan = PlannedConversion.of(case.source().to("meta"), find_conversion(case.what, case.options))
    kinds = {(tensor.device.type, tensor.dtype) for tensor in plan.converted.parameters()}
    assert kinds == {("meta", torch.float64)}


def test_changes_add_up(tmp_path: Any) -> None:
    first = PlannedConversion.of(tiny_gpt(), find_conversion("gqa", {})).carry_out()
    second = PlannedConversion.of(first, find_conversion("window", {"window": 8, "sinks": 1})).carry_out()
    save(second, tmp_path)
    back = load(tmp_path)
    assert [change.name for change in back.member.changes] == ["heads"]
    assert back.member.keywords["pattern"] == "Causal() & (Band(7) | Tokens(1))"
    assert torch.equal(outputs(back, 30), outputs(second, 30))


def test_an_average_of_equal_heads_is_exact() -> None:
    source = tiny_llama()
    with torch.no_grad():
        for layer in source.body.layers:  # type: ignore[union-attr]
            qkv = layer.layers[0].projection.qkv.weight
            for part in (qkv[16:24], qkv[24:32]):  # two heads of width 4
                part[4:] = part[:4]
    converted = PlannedConversion.of(source, find_conversion("mqa", {})).carry_out()
    torch.testing.assert_close(outputs(converted, 30), outputs(source, 30), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("what", "options", "message"),
    [
        ("windo", {}, "there is no conversion to 'windo'; the nearest is 'window'"),
        ("heads", {"key_heads": 3}, "key_heads=3"),
        ("window", {"keep": (9,)}, "keep has the layer 9, expected numbers from 1 to 3"),
        ("window", {"keep": 2}, "keep=2 chooses the layers to keep by measurement"),
        ("Caus() & Band(3)", {}, "is not a pattern; the nearest is 'Causal'"),
    ],
)
def test_wrong_conversions_are_refused_in_one_line(what: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as error:
        PlannedConversion.of(tiny_llama(), find_conversion(what, options))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_infinite_promises_say_so() -> None:
    assert planned(Case("heads", {"key_heads": 2}, tiny_llama)).plan.promise.length == math.inf
