"""kf.convert: matching, layers to keep, adaptation beside the source, and the report."""

import copy
import dataclasses
import inspect
import json
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.convert.support.changed_model import conversions
from kinformer.lab.conversion.adaptation import adaptation_settings
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.lab.conversion.layer_choice import layers_to_keep
from kinformer.lab.train.lora import LoRA
from kinformer.lab.train.progress import ProgressDisplay, Status

TEXT = ["the cat sat on the mat, and the dog sat on the log. " * 60]


@pytest.fixture(scope="module")
def source() -> Any:
    torch.manual_seed(0)
    model = kf.llama(d=16, depth=3, heads=4, key_heads=2)
    kf.fit(model, TEXT, steps=30, batch=4, length=48, lr=1e-2, progress=False)
    return model.eval()


def fast(**changed: Any) -> Any:
    return adaptation_settings(batch=4, length=48, **changed)


def test_an_adaptation_improves_the_converted_model(source: Any, tmp_path: Path) -> None:
    before = {name: x.clone() for name, x in source.state_dict().items()}
    model = kf.convert(source, "mqa", data=TEXT, steps=25, settings=fast(), out=tmp_path)
    report = model.report
    assert report.before < report.adapted < report.after
    assert report.adaptation["steps"] == 25 and report.adaptation["LoRA rank"] == 8
    assert report.adaptation["trained weights"] < sum(p.numel() for p in model.parameters())
    for name, tensor in source.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    saved, tokens = kf.load(tmp_path), torch.arange(20)[None]
    torch.testing.assert_close(saved.logits(tokens).y, model.logits(tokens).y)
    assert not any("lora" in name for name in saved.state_dict())
    assert ConversionReport.load(tmp_path) == report
    more = kf.convert(source, "mqa", data=TEXT, steps=27, settings=fast(), out=tmp_path, resume=True)
    assert more.report.adaptation["steps"] == 27 and more.report.after == report.after
    for what, options in (("window", {}), ("mqa", {"merge": "svd"})):
        with pytest.raises(ValueError, match=r"holds a conversion to heads\(key_heads=1, merge=mean\)\. Give"):
            kf.convert(source, what, data=TEXT, steps=29, settings=fast(), out=tmp_path, resume=True, **options)


def test_all_weights_adapt_without_lora(source: Any) -> None:
    model = kf.convert(source, "mqa", data=TEXT, steps=2, settings=fast(lora=None), teach=0.0)
    assert model.report.adaptation["trained weights"] == sum(p.numel() for p in model.parameters())
    assert model.report.adaptation["lr"] == 5e-5 and "LoRA rank" not in model.report.adaptation


def test_new_parts_train_in_full(source: Any) -> None:
    settings = fast(lora=LoRA(2))
    options: dict[str, Any] = {"window": 6, "sinks": 1}
    matched = kf.convert(source, "linear", data=TEXT, **options)
    adapted = kf.convert(source, "linear", data=TEXT, steps=2, settings=settings, **options)
    new = [name for name in matched.state_dict() if name not in source.state_dict()]
    assert new
    for name in new:
        assert not torch.equal(matched.state_dict()[name], adapted.state_dict()[name]), name
    changed = {
        name
        for name, x in source.state_dict().items()
        if name in adapted.state_dict() and not torch.equal(x, adapted.state_dict()[name])
    }
    assert changed and all(".projection.qkv." in name or ".aggregation." in name for name in changed)


def test_layers_that_matter_most_are_kept(source: Any) -> None:
    model = kf.convert(source, "window", window=2, sinks=1, keep=2, data=TEXT)
    losses, kept = model.report.layer_losses, model.report.plan.options["keep"]
    assert len(losses) == 3 and kept == tuple(sorted(sorted(range(1, 4), key=lambda n: -losses[n - 1])[:2]))
    none = kf.convert(source, "window", window=2, sinks=1, data=TEXT)
    assert model.report.after < none.report.after and min(losses) > 0
    with pytest.raises(ValueError, match="expected at most 3"):
        layers_to_keep(losses, 4)


def test_costs_of_long_rows_show_a_state_of_one_size(source: Any) -> None:
    report = kf.convert(source, "window", window=60, sinks=4, seconds=0.2).report
    sizes = {name: [cost.state for cost in costs] for name, costs in report.costs.items()}
    assert len(set(sizes["converted"])) == 1
    assert sizes["source"][-1] > 30 * sizes["source"][0] and sizes["source"][0] > sizes["converted"][0]
    assert report.costs["converted"][0].reading is not None
    json.dumps(report.to_json())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 2}, "got minutes or steps, but no data"),
        ({"resume": True}, "resume=True continues an adaptation in out"),
        ({"steps": 2, "minutes": 1.0, "data": TEXT}, "give either minutes= or steps="),
        ({"keep": 2}, "got no data"),
    ],
)
def test_what_is_wrong_is_one_line(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        kf.convert(source, "window", **options)
    assert "\n" not in str(error.value)


def test_a_damaged_report_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no conversion"):
        ConversionReport.load(tmp_path)
    (tmp_path / "conversion.json").write_text("[]")
    with pytest.raises(ValueError, match=r"conversion.json is damaged"):
        ConversionReport.load(tmp_path)


@pytest.mark.parametrize("recipe", ["longformer", "bigbird", "etc", "poolingformer", "predictive_attention"])
def test_tensors_under_other_names_are_adapted_by_lora(recipe: str) -> None:
    encoder = kf.bert(d=16, depth=2, heads=2, length=32)
    settings = adaptation_settings(batch=2, length=32)
    report = kf.convert(encoder, recipe, data=TEXT, steps=1, settings=settings).report
    new = sum(fate.parameters for fate in report.plan.fates if fate.fate == "new")
    adapters = report.adaptation["trained weights"] - new
    assert 0 < adapters < sum(p.numel() for p in encoder.parameters()) / 2


def test_a_model_with_a_datastore_is_not_adapted(source: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got minutes or steps"):
        kf.convert(source, "knn_lm", data=TEXT, steps=1, out=tmp_path / "new" / "folder")
    assert not list(tmp_path.iterdir())


def test_another_conversion_is_not_resumed(source: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"window": 6, "sinks": 1, "data": TEXT, "settings": fast(), "out": tmp_path}
    kf.convert(source, "window", keep=1, steps=1, **options)
    other = kf.llama(d=16, depth=3, heads=4, key_heads=2)
    for model, changed, message in (
        (other, {"keep": 1}, "a model with other weights"),
        (source, {"keep": 1, "teach": 0.0}, "an adaptation with teach=1, got 0"),
        (source, {"keep": (2,)}, r"holds a conversion to window\(window=6, sinks=1, keep=1\)"),
    ):
        with pytest.raises(ValueError, match=message):
            kf.convert(model, "window", steps=2, resume=True, **changed, **options)
    resumed = kf.convert(source, "window", keep=1, steps=2, resume=True, **options)
    assert resumed.report.adaptation["steps"] == 2


@pytest.mark.parametrize(
    ("what", "options"), [("memory", {"segment": 4, "memory": 4, "sinks": 0, "keep": 1}), ("mqa", {"merge": "svd"})]
)
def test_the_same_conversion_is_resumed(what: str, options: dict[str, Any], source: Any, tmp_path: Path) -> None:
    words: dict[str, Any] = {"data": TEXT, "settings": fast(), "out": tmp_path}
    kf.convert(source, what, steps=1, **words, **options)
    assert kf.convert(source, what, steps=2, resume=True, **words, **options).report.adaptation["steps"] == 2


class Interruption(ProgressDisplay):
    """A display that stands for Ctrl-C after two steps."""

    def status(self, status: Status) -> None:
        if status.step == 2:
            signal.raise_signal(signal.SIGINT)


def test_a_resumed_conversion_equals_an_uninterrupted_one(source: Any, tmp_path: Path) -> None:
    words: dict[str, Any] = {"data": TEXT, "settings": fast(), "window": 6, "sinks": 1}
    with pytest.raises(KeyboardInterrupt):
        kf.convert(source, "linear", steps=5, out=tmp_path, show=Interruption(), **words)
    resumed = kf.convert(source, "linear", steps=5, out=tmp_path, resume=True, **words)
    whole = kf.convert(source, "linear", steps=5, **words)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def test_a_folder_with_a_model_is_kept(source: Any, tmp_path: Path) -> None:
    kf.save(source, tmp_path)
    with pytest.raises(ValueError, match="which would be overwritten"):
        kf.convert(source, "mqa", out=tmp_path)
    tokens = torch.arange(20)[None]
    torch.testing.assert_close(kf.load(tmp_path).logits(tokens).y, source.logits(tokens).y)
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    (tmp_path / "best").mkdir()
    kf.save(source, tmp_path / "best")
    converted = kf.convert(source, "mqa", out=tmp_path, overwrite=True)
    torch.testing.assert_close(kf.load(tmp_path).logits(tokens).y, converted.logits(tokens).y)
    assert not (tmp_path / "best" / "model.safetensors").exists() and not (tmp_path / "metrics.jsonl").exists()


def test_what_cannot_be_completed_is_refused_before_anything_is_computed(source: Any, tmp_path: Path) -> None:
    def refuse(stage: str, fraction: float) -> None:
        raise AssertionError(stage)

    for what, options, message in (
        ("window", {"keep": 99}, "expected at most 3"),
        ("window", {"keep": -1}, "expected at most 3"),
        ("knn_lm", {}, "got no folder"),
        ("window", {"seconds": -1.0}, "seconds"),
    ):
        with pytest.raises(ValueError, match=message):
            kf.convert(source, what, data=TEXT, progress=refuse, **options)
    with pytest.raises(ValueError, match="no layer|expected numbers from 1"):
        kf.convert(source, "window", keep=(9,), out=tmp_path / "new" / "folder")
    assert not list(tmp_path.iterdir())


def test_a_built_datastore_promises_nothing(source: Any, tmp_path: Path) -> None:
    assert kf.convert(source, "knn_lm").report.plan.promise.length == float("inf")
    assert kf.convert(source, "knn_lm", data=TEXT, out=tmp_path, k=4).report.plan.promise.length == 0


def test_no_option_of_a_recipe_has_the_name_of_an_argument() -> None:
    arguments = set(inspect.signature(kf.convert).parameters)
    for name, recipe in conversions().items():
        assert not arguments & {field.name for field in dataclasses.fields(recipe)}, name


def test_frozen_weights_stay_frozen(source: Any) -> None:
    frozen = copy.deepcopy(source).requires_grad_(False)
    for what in ("window", "mqa"):
        assert not any(p.requires_grad for p in kf.convert(frozen, what).parameters()), what


def test_memory_layers_are_kept_by_their_numbers_only(source: Any) -> None:
    with pytest.raises(TypeError, match="keep"):
        kf.convert(source, "memorizing", data=TEXT, keep=1)


def test_the_folder_of_the_source_is_not_overwritten(source: Any, tmp_path: Path) -> None:
    kf.save(source, tmp_path / "run")
    kf.save(source, tmp_path / "run" / "best")
    for folder in (tmp_path / "run", tmp_path / "run" / "best"):
        with pytest.raises(ValueError, match="holds the source"):
            kf.convert(kf.load(folder), "mqa", out=tmp_path / "run", overwrite=True)
    tokens = torch.arange(20)[None]
    torch.testing.assert_close(kf.load(tmp_path / "run").logits(tokens).y, source.logits(tokens).y)


def test_a_pattern_may_be_an_object(source: Any) -> None:
    pattern, tokens = kf.Causal() & (kf.Band(3) | kf.Tokens(2)), torch.arange(40)[None]
    by_text = kf.convert(source, "Causal() & (Band(3) | Tokens(2))")
    torch.testing.assert_close(kf.convert(source, pattern).logits(tokens).y, by_text.logits(tokens).y)


def test_merged_heads_are_planned_as_such(source: Any) -> None:
    fates = {fate.name: fate.fate for fate in kf.convert(source, "mqa", merge="svd").report.plan.fates}
    changed = [name for name, fate in fates.items() if fate == "merged"]
    assert [name.rpartition(".0.")[2] for name in changed] == ["projection.qkv.weight", "aggregation.linear.weight"]


def test_a_model_with_a_datastore_is_neither_converted_nor_exported(source: Any, tmp_path: Path) -> None:
    retrieval = kf.convert(source, "knn_lm", data=TEXT, out=tmp_path / "knn", k=4)
    with pytest.raises(ValueError, match="cannot convert a model with a datastore"):
        kf.convert(retrieval, "window")
    with pytest.raises(ValueError, match="cannot write a model with a datastore"):
        kf.save(retrieval, tmp_path / "hf", format="hf")


def test_only_models_with_long_distances_are_warned_of(source: Any) -> None:
    tokens = torch.arange(60)[None]  # the source was trained on rows of 48
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for what in ("window", "memory"):
            options = {"window": 8} if what == "window" else {"segment": 8, "memory": 8}
            kf.generate(kf.convert(source, what, **options), tokens, 2)
    absolute = kf.gpt(d=16, depth=1, heads=2, position="sinusoidal", pattern="Causal() & Band(8)")
    absolute.trained_length = 48
    for model in (absolute, source, kf.convert(source, "Causal() & (Band(8) | Tokens(4))")):
        with pytest.warns(UserWarning, match="trained on rows of 48"):
            kf.generate(model, tokens, 2)


def test_an_earlier_conversion_is_named(source: Any) -> None:
    with pytest.raises(ValueError, match="converted by window before: convert its source instead"):
        kf.convert(kf.convert(source, "window", window=8), "linear", window=4)
