"""Adaptation: what it trains, with which teacher and on which rows, and that the source stays as it was."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import kinformer as kf
from kinformer.lab.conversion import adaptation
from kinformer.lab.conversion.adaptation import Adaptation, adaptation_settings
from kinformer.lab.conversion.conversion_report import ConversionReport
from kinformer.lab.data.as_data import as_data
from kinformer.lab.train.budget import StepBudget
from kinformer.lab.train.lora import LoRA
from kinformer.pages.conversion_report import save_conversion_report

TEXT = ["the cat sat on the mat, and the dog sat on the log. " * 60]


def llama(**changed: Any) -> Any:
    torch.manual_seed(0)
    return kf.llama(**{"d": 16, "depth": 2, "heads": 4, "key_heads": 2, **changed}).eval()


def gpt(length: int, **changed: Any) -> Any:
    torch.manual_seed(0)
    return kf.gpt(**{"d": 16, "depth": 2, "heads": 2, "length": length, **changed}).eval()


def fast(**changed: Any) -> Any:
    return adaptation_settings(**{"batch": 2, "length": 48, **changed})


def adapt(source: Any, converted: Any, new: tuple[str, ...] = (), steps: int = 1, **fields: Any) -> dict[str, Any]:
    fields = {"settings": fast(), **fields}
    return Adaptation(StepBudget(steps), **fields).run(source, converted, as_data(source, TEXT), new)


def convert(source: Any, what: str, **options: Any) -> Any:
    return kf.convert(source, what, data=TEXT, **{"steps": 1, "settings": fast(), **options})


def test_the_source_teaches_the_converted_model(tmp_path: Path) -> None:
    source = llama()
    taught = convert(source, "mqa", steps=3, out=tmp_path, teach=0.5)
    alone = convert(source, "mqa", steps=3, teach=0.0)
    assert taught.report.adaptation["weight of the teacher's loss"] == 0.5
    assert "no teacher because" not in taught.report.adaptation
    entries = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert any("logits" in entry.get("parts", {}) for entry in entries)
    assert any(not torch.equal(x, alone.state_dict()[name]) for name, x in taught.state_dict().items())


def test_the_mode_of_every_module_of_the_source_stays() -> None:
    source = llama()
    source.train()
    source.body.layers[0].eval()
    modes, converted = [part.training for part in source.modules()], kf.convert(source, "mqa")
    converted.train()
    adapt(source, converted)
    assert [part.training for part in source.modules()] == modes and True in modes and False in modes
    assert not any(part.training for part in converted.modules())


def test_the_source_stays_on_its_device_even_if_the_training_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    source, moves = llama().train(), list[Any]()
    converted = kf.convert(source, "mqa")

    def move_and_fail(view: Any, *arguments: Any, **keywords: Any) -> None:
        view.to("meta")
        raise MemoryError

    monkeypatch.setattr(adaptation, "train", move_and_fail)
    object.__setattr__(source, "to", moves.append)
    with pytest.raises(MemoryError):
        adapt(source, converted)
    assert moves == [torch.device("cpu")] and source.training


def test_rows_are_no_longer_than_the_teacher_can_read() -> None:
    source = gpt(64)
    longer = convert(source, "learned", factor=4.0, settings=fast(length=512))
    assert longer.report.adaptation["length"] == 64 and longer.longest == 256
    alone = convert(source, "learned", factor=4.0, settings=fast(length=512), teach=0.0)
    assert alone.report.adaptation["length"] == 256
    assert convert(source, "learned", factor=4.0, settings=fast(length=24)).report.adaptation["length"] == 24


def test_rows_are_no_longer_than_those_of_the_teachers_training() -> None:
    source = gpt(64)
    source.trained_length = 40
    assert convert(source, "learned", factor=4.0).report.adaptation["length"] == 40
    rotary = llama()
    rotary.trained_length = 32
    assert convert(rotary, "yarn").report.adaptation["length"] == 32
    assert convert(rotary, "yarn", teach=0.0).report.adaptation["length"] == 48


def test_only_weights_that_require_gradients_are_counted() -> None:
    source = llama()
    converted = kf.convert(source, "mqa")
    converted.embedding.requires_grad_(False)
    facts = adapt(source, converted, settings=fast(lora=None))
    counts = [p.numel() for p in converted.parameters()]
    assert facts["trained weights"] == sum(counts) - converted.embedding.weight.numel() > 0


def test_a_lora_with_names_trains_the_new_parts_too() -> None:
    source, options = llama(), {"window": 6, "sinks": 1}
    matched = kf.convert(source, "linear", data=TEXT, **options)
    settings = fast(lora=LoRA(2, train=("*.norms.0.*",)), lr=1e-2)
    model = convert(source, "linear", steps=2, settings=settings, **options)
    before, after = matched.state_dict(), model.state_dict()
    new = [name for name in before if name not in source.state_dict()]
    norms = [name for name in before if ".norms.0." in name]
    assert new and norms
    for name in (*new, *norms):
        assert not torch.equal(before[name], after[name]), name


def test_frozen_new_parts_stay_frozen() -> None:
    source, options = llama(), {"window": 6, "sinks": 1}
    converted = kf.convert(source, "linear", data=TEXT, **options)
    new = tuple(name for name, _ in converted.named_parameters() if name not in source.state_dict())
    frozen = converted.get_parameter(new[0]).requires_grad_(False)
    before = {name: converted.get_parameter(name).clone() for name in new}
    adapt(source, converted, new, settings=fast(lr=1e-2))
    changed = {name for name in new if not torch.equal(converted.get_parameter(name), before[name])}
    assert len(new) > 1 and changed == set(new[1:]) and not frozen.requires_grad


def test_layers_with_exits_stay_as_they_are() -> None:
    source = llama(depth=4)
    matched, model = kf.convert(source, "exits", data=TEXT), convert(source, "exits", settings=fast(lr=1e-2))
    trained = sum(p.numel() for p in matched.parameters() if p.requires_grad)
    assert model.report.adaptation["trained weights"] == trained > 0
    for name, x in source.state_dict().items():
        if name in model.state_dict():
            assert torch.equal(x, model.state_dict()[name]), name


@pytest.mark.parametrize(
    ("make", "what", "options", "reason"),
    [
        (llama, "mqa", {"teach": 0.0}, "teach is 0"),
        (
            lambda: kf.bert(d=16, depth=1, heads=2, length=48),
            "talking_heads",
            {},
            "the source is of class MLM, and only an LM can teach or be taught",
        ),
        (
            llama,
            "memory",
            {"segment": 4, "memory": 4, "sinks": 0},
            r"the converted model continues earlier rows \(lanes\), and a teacher reads whole rows",
        ),
    ],
)
def test_the_report_says_why_there_is_no_teacher(
    make: Any, what: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    report: ConversionReport = convert(make(), what, **options).report
    assert "weight of the teacher's loss" not in report.adaptation
    save_conversion_report(report, tmp_path)
    page = (tmp_path / "report.html").read_text()
    plain = reason.replace("\\", "")
    assert report.adaptation["no teacher because"] == plain and f"no teacher because {plain}" in page


def test_reasons_of_each_model() -> None:
    source, other = llama(), kf.transformer_xl(d=16, depth=1, heads=2)
    reasons = [Adaptation(StepBudget(1))._why_no_teacher(*pair) for pair in ((source, source), (other, source))]
    assert reasons == ["", "the source continues earlier rows (lanes), and a teacher reads whole rows"]
    knn = kf.convert(source, "knn_lm")
    reason = Adaptation(StepBudget(1))._why_no_teacher(source, knn)
    assert reason == "the converted model is of class RetrievalLM, and only an LM can teach or be taught"


@pytest.mark.parametrize("teach", [-3.0, math.inf, math.nan])
def test_a_wrong_weight_of_the_teacher_is_refused(teach: float) -> None:
    with pytest.raises(ValueError, match=r"teach=.*: give a number from 0 up") as error:
        Adaptation(StepBudget(1), teach=teach)
    assert "\n" not in str(error.value)


def test_a_model_that_reads_ahead_is_not_trained() -> None:
    source, converted = llama(), llama(pattern="Band(3)")
    with pytest.raises(ValueError, match="reads ahead"):
        adapt(source, converted)


def test_the_training_knows_why_a_model_reads_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    source = llama()
    converted, lengths = kf.convert(source, "mqa"), list[int]()

    def declare(model: Any, length: int) -> str:
        assert model is converted
        lengths.append(length)
        return "its paper says so"

    monkeypatch.setattr(adaptation, "reads_ahead", declare)
    with pytest.warns(UserWarning, match="reads ahead, as its part declares: its paper says so"):
        adapt(source, converted)
    assert lengths == [adaptation.SHORT]
