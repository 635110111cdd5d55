"""kf.convert: matching, layers to keep, adaptation beside the source, and the report."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.lab.conversion.adaptation import adaptation_settings
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.lab.conversion.layer_choice import layers_to_keep
from kinformer.lab.train.lora import LoRA

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
        with pytest.raises(ValueError, match=r"holds a conversion to heads\(key_heads=1, merge=mean\), expected"):
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
