"""Longer positions: YaRN against transformers, tables place by place, promises, records and refusals."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import kinformer as kf
from kinformer.convert.positions import PositionsConversion, stretch, tile
from kinformer.convert.support.conversion_plan import PlannedConversion, find_conversion
from kinformer.core.model import Model
from kinformer.nn.positions.rotary import Rotary
from kinformer.nn.scalings.yarn import YaRN
from tests.bridge.test_decoders import LLAMA, NEOX, VOCAB
from tests.parity.peers import TOLERANCE, agree, shaken

SIZES: dict[str, Any] = {"d": 16, "depth": 2, "heads": 2, "vocab": 11}
MAKERS: dict[str, Callable[[], Model]] = {
    "llama": lambda: kf.llama(**SIZES, key_heads=1),
    "gpt_neox": lambda: kf.gpt_neox(**SIZES, head_dim=16),
    "gpt, rotary": lambda: kf.gpt(**SIZES, position="rotary"),
    "gpt": lambda: kf.gpt(**SIZES, length=24),
    "gpt, a table for each layer": lambda: kf.gpt(**SIZES, length=24, per_layer=True),
    "bert": lambda: kf.bert(**SIZES, length=24),
}
ROTARY = [name for name in MAKERS if name in ("llama", "gpt_neox", "gpt, rotary")]
LEARNED = [name for name in MAKERS if name not in ROTARY]


def source(name: str, trained_length: int = 12) -> Any:
    torch.manual_seed(0)
    model: Any = shaken(MAKERS[name]().double().eval())
    model.trained_length = trained_length
    return model


def converted(model: Model, what: str, **options: Any) -> Any:
    return PlannedConversion.of(model, find_conversion(what, options)).carry_out()


def outputs(model: Any, tokens: Tensor) -> Tensor:
    return model.logits(tokens).y if hasattr(model, "logits") else model.hidden(tokens).y


def tokens_of(length: int, vocab: int = 11) -> Tensor:
    return torch.randint(0, vocab, (2, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("what", ["pi", "ntk", "yarn"])
@pytest.mark.parametrize("name", ROTARY)
def test_factor_1_is_equal_everywhere_and_another_factor_is_not(name: str, what: str) -> None:
    model, tokens = source(name), tokens_of(60)
    want = outputs(model, tokens)
    assert torch.equal(outputs(converted(model, what, factor=1.0), tokens), want)
    assert find_conversion(what, {"factor": 1.0}).resolve(model).promise(model).length == math.inf
    other = converted(model, what, factor=4.0)
    assert (outputs(other, tokens) - want).abs().max() > 1e-3
    assert find_conversion(what, {}).resolve(model).promise(model).length == 1
    assert other.trained_length == 48 and torch.equal(outputs(model, tokens), want)


@pytest.mark.parametrize("what", ["pi", "yarn"])
@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_the_class_of_transformers_computes_the_same(kind: str, what: str, tmp_path: Path) -> None:
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    keys: dict[str, Any] = (LLAMA if kind == "llama" else {**NEOX, "rotary_pct": 1.0}) | ends
    plain = transformers.AutoConfig.for_model(kind, **keys, initializer_range=0.3)
    theirs: Any = shaken(transformers.AutoModelForCausalLM.from_config(plain).double().eval())
    theirs.save_pretrained(tmp_path)
    ours = converted(kf.load(tmp_path), what, factor=4.0)
    rope: dict[str, Any] = {"rope_theta": 10000.0, "rope_type": "linear" if what == "pi" else what, "factor": 4.0}
    if what == "yarn":
        rope["original_max_position_embeddings"] = 32
    scaled = transformers.AutoConfig.for_model(kind, **keys, rope_parameters=rope)
    other: Any = transformers.AutoModelForCausalLM.from_config(scaled).double().eval()
    other.load_state_dict(theirs.state_dict())
    tokens = tokens_of(100, VOCAB)  # positions beyond the original 32
    agree(outputs(ours, tokens), other(tokens).logits, TOLERANCE[torch.float32])
    assert ours.trained_length == 128
    kf.save(ours, tmp_path / "out", format="hf")
    written = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(written) is type(other) and written.config.max_position_embeddings == 128
    assert torch.equal(written(tokens).logits, other(tokens).logits)


@pytest.mark.parametrize("name", ["llama", "gpt, rotary", "gpt"])
def test_a_converted_model_is_saved_and_loaded(name: str, tmp_path: Path) -> None:
    model = converted(source(name), "learned" if name == "gpt" else "yarn", factor=2.5)
    kf.save(model, tmp_path / "run")
    back, tokens = kf.load(tmp_path / "run"), tokens_of(30)
    assert torch.equal(outputs(back, tokens), outputs(model, tokens)) and back.trained_length == 30
    changes = [change.name for change in back.member.changes]
    assert changes == (["positions"] if name == "gpt, rotary" else [])
    if name != "gpt":
        scalings = [part.scaling for part in back.modules() if isinstance(part, Rotary)]
        assert scalings == [YaRN(2.5, 12)] * 2


def naive_stretch(table: Tensor, length: int) -> Tensor:
    """Old positions are `step` new positions apart, so that both ends meet."""
    rows = []
    for new in range(length):
        place = new * (len(table) - 1) / (length - 1)
        left = min(math.floor(place), len(table) - 2)
        rows.append((left + 1 - place) * table[left] + (place - left) * table[left + 1])
    return torch.stack(rows)


@pytest.mark.parametrize("length", [12, 20, 36, 31])
def test_tables_equal_a_loop_over_positions(length: int, float64: None) -> None:
    table = torch.randn(16, 5)
    assert torch.allclose(stretch(table, rows=12, length=length), naive_stretch(table[:12], length), atol=1e-13)
    repeated = tile(table, rows=12, length=length)
    assert all(torch.equal(repeated[n], table[n % 12]) for n in range(length))


@pytest.mark.parametrize("name", LEARNED)
def test_tiled_tables_are_equal_within_the_old_length(name: str) -> None:
    model = source(name)
    for trained, length in ((12, 12), (None, 24)):  # without a training the whole table counts
        model.trained_length = trained
        recipe = find_conversion("learned", {"resize": "tiled", "factor": 3.0}).resolve(model)
        longer = PlannedConversion.of(model, recipe).carry_out()
        assert recipe.promise(model).length == length and longer.trained_length == 3 * length == longer.longest
        within = tokens_of(length)
        assert torch.equal(outputs(longer, within), outputs(model, within))
        assert outputs(longer, tokens_of(3 * length)).isfinite().all()
        with pytest.raises(IndexError, match="beyond the table"):
            outputs(longer, tokens_of(3 * length + 1))


@pytest.mark.parametrize("name", LEARNED)
def test_stretched_tables_promise_only_a_factor_of_1(name: str) -> None:
    model, within = source(name, 24), tokens_of(24)
    same = converted(model, "learned", factor=1.0)
    assert torch.equal(outputs(same, within), outputs(model, within))
    longer = converted(model, "learned", factor=2.0)
    assert longer.longest == 48 and (outputs(longer, within) - outputs(model, within)).abs().max() > 1e-3
    recipe = find_conversion("learned", {}).resolve(model)
    assert recipe.promise(model).length == 1
    fates = {fate.fate for fate in PlannedConversion.of(model, recipe).plan.fates}
    assert fates == {"copied", "stretched"}


def test_a_model_that_no_member_built_is_changed_in_place() -> None:
    model = source("gpt")
    del model.member
    longer = converted(model, "learned", resize="tiled", factor=2.0)
    assert longer.longest == 24 and torch.equal(outputs(longer, tokens_of(12)), outputs(model, tokens_of(12)))


def scaled_llama() -> Any:
    return kf.llama(**SIZES, key_heads=1, scaling="pi:factor=2")


@pytest.mark.parametrize(
    ("make", "what", "options", "message"),
    [
        (lambda: source("gpt"), "yarn", {}, "cannot convert this gpt by yarn: it has no rotary positions"),
        (lambda: source("llama"), "learned", {}, "it has no learned positions"),
        (lambda: source("gpt"), "learned", {"length": 25}, "got length=25, expected at most its 24 learned positions"),
        (MAKERS["llama"], "yarn", {}, "the length of its training is not known. Give length="),
        (scaled_llama, "ntk", {}, "got rotary positions with the scaling pi:factor=2.0, expected plain ones"),
        (lambda: kf.linformer(**SIZES, length=16), "learned", {}, "depends on the length too"),
        (MAKERS["llama"], "yarn", {"resize": "tiled"}, "resize='tiled' has no effect with kind=yarn"),
        (MAKERS["llama"], "yarn", {"factor": 0.5}, "factor=0.5: give a number from 1 up"),
        (MAKERS["llama"], "yarn", {"length": 0}, "length=0: give a whole number of at least 1"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    make: Callable[[], Any], what: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError) as error:
        converted(make(), what, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(("what", "length"), [("ntk", math.inf), ("pi", 1), ("yarn", 1)])
def test_ntk_promises_every_length_where_a_single_pair_rotates(what: str, length: float) -> None:
    model: Any = shaken(kf.llama(**SIZES, turned=2).double().eval())
    model.trained_length, tokens = 12, tokens_of(60)
    new = converted(model, what, factor=4.0)
    assert find_conversion(what, {}).resolve(model).promise(model).length == length
    assert torch.equal(outputs(new, tokens), outputs(model, tokens)) == (length > 1)


def test_rotations_need_no_length_unless_they_have_a_ramp() -> None:
    model = MAKERS["llama"]()
    assert converted(model, "ntk").trained_length is None
    assert converted(model, "yarn", length=20, factor=1.5).trained_length == 30
    assert PositionsConversion().kind == "yarn"
