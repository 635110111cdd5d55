"""The member spalm: from a run folder and a datastore to text, and what it refuses."""

import copy
import inspect
import shutil
from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.lab.cost.cost import cost, counting, filled_state, sample_rows
from kinformer.lab.datastore.datastore import Datastore
from kinformer.members.spalm import spalm
from kinformer.members.transformer_xl import transformer_xl
from kinformer.models.lm import LM
from kinformer.models.spalm import SPALM
from tests.cli.folders import SMALL, folder
from tests.cli.test_commands import fails

TEXT = b"".join(b"a %d b %d. " % (n % 7, n % 5) for n in range(60))
SIZE = [f"{name}={value}" for name, value in SMALL.items()]


@pytest.fixture
def datastore_folder(tmp_path: Path) -> Path:
    """A folder with a text, a model and a datastore of it, and a spalm that was trained with them."""
    (tmp_path / "text").write_bytes(TEXT)
    home = folder(tmp_path / "xl", "transformer_xl")
    Datastore.build(tmp_path / "store", load(home), torch.tensor(list(TEXT), dtype=torch.uint8), home=home)
    assert run(trained(tmp_path, "spalm", f"datastore={tmp_path / 'store'}")) == 0
    return tmp_path


def trained(folder: Path, name: str, *keywords: str) -> list[str]:
    to = [
        "--data",
        f"text={folder / 'text'}",
        "--steps",
        "2",
        "--batch",
        "2",
        "--length",
        "8",
        "--out",
        str(folder / name),
    ]
    return ["train", "spalm", *keywords, *SIZE, *to]


def test_it_trains_is_kept_and_writes(datastore_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load(datastore_folder / "spalm")
    assert isinstance(model, SPALM) and model.k == 4 and model.log_rate is None and model.lanes
    assert model.frozen.state_dict()["embedding.weight"].equal(load(datastore_folder / "xl").embedding.weight)
    assert '"gate"' in (datastore_folder / "spalm" / "metrics.jsonl").read_text()
    for words in (["--seed", "1"], ["--beam", "2"]):
        assert run(["generate", str(datastore_folder / "spalm"), "--prompt", "a 1", "--tokens", "3", *words]) == 0
    assert (
        run(
            [
                "evaluate",
                str(datastore_folder / "spalm"),
                "k=2",
                "--data",
                f"text={datastore_folder / 'text'}",
                "--bytes",
                "20",
            ]
        )
        == 0
    )
    assert isinstance(spalm(datastore=str(datastore_folder / "store"), k=2, distance=True, **SMALL), SPALM)


def test_what_is_not_trained_is_multiplied_once_and_a_copy_shares_it(datastore_folder: Path) -> None:
    cost_report = cost(spalm(datastore=str(datastore_folder / "store"), **SMALL), 1, 8)
    own, other = cost(spalm(**SMALL), 1, 8).flops, load(datastore_folder / "xl").eval()
    batch, state = sample_rows(other, 1, 8), filled_state(other, 1, 8)
    with torch.no_grad(), counting() as frozen:  # it keeps keys, which are not projected again as in training
        other(batch, state, 0.5)
    keys, head = 2 * 8 * (len(TEXT) - 1) * SMALL["d"], 2 * 8 * 256 * SMALL["d"]
    once = keys + frozen.flops - head  # it asks no frozen head
    assert once > keys and cost_report.once == pytest.approx(once, rel=0.05)
    assert cost_report.flops - cost_report.once == pytest.approx(own, rel=0.1)
    assert cost_report.step_flops == 3 * (cost_report.flops - cost_report.once) + cost_report.once
    model = load(datastore_folder / "spalm")
    assert copy.deepcopy(model).store is model.store, "no keys in memory"


def test_without_its_datastore_or_with_another_it_says_so_in_one_line(
    datastore_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, copy = datastore_folder / "store", datastore_folder / "moved"
    ask = ["generate", str(datastore_folder / "spalm"), "--prompt", "a", "--tokens", "1"]
    data = ["--data", f"text={datastore_folder / 'text'}", "--bytes", "20"]
    shutil.move(store, copy)
    fails(capsys, ask, f"there is no datastore in {store}")
    assert run([*ask, "--datastore", str(copy)]) == 0
    assert run(["evaluate", str(datastore_folder / "spalm"), *data, "--datastore", str(copy)]) == 0
    fails(capsys, [*ask, "--datastore", str(datastore_folder)], "there is no datastore in")
    other = folder(datastore_folder / "other", "transformer_xl", seed=1)
    Datastore.build(store, load(other), torch.tensor(list(TEXT), dtype=torch.uint8), home=other)
    fails(capsys, ask, "trained with a datastore of another model")
    keyword = f"datastore={copy}"
    (datastore_folder / "empty").mkdir()
    fails(
        capsys,
        trained(datastore_folder, "new", keyword, f"frozen={datastore_folder / 'empty'}"),
        "give its folder, frozen=FOLDER",
    )
    fails(
        capsys,
        trained(datastore_folder, "new", keyword, f"frozen={other}"),
        "the datastore was built with another model",
    )
    fails(capsys, trained(datastore_folder, "new", keyword, "frozen=nowhere"), "give its folder, frozen=FOLDER")
    fails(capsys, trained(datastore_folder, "new", keyword, "vocab=300"), "the frozen model has 256 tokens")
    fails(capsys, trained(datastore_folder, "new", keyword, "k=0"), "k=0: give a whole number of at least 1")
    fails(capsys, trained(datastore_folder, "new", "k=8"), "k=8 has no effect with datastore=None")
    assert not (datastore_folder / "new").exists()


def test_a_retrieved_embedding_gives_its_token_a_logit_that_a_gate_can_open_for(datastore_folder: Path) -> None:
    """|y|^2 is the most that it adds: 4 at the start, where transformer_xl's embeddings have 0.02^2 d."""
    sizes = {**SMALL, "d": 64}
    for build, keywords, length in (
        (lambda **changes: spalm(datastore=str(datastore_folder / "store"), **SMALL, **changes), {}, 4.0),
        (
            lambda **changes: spalm(datastore=str(datastore_folder / "store"), **SMALL, **changes),
            {"std": 0.5},
            0.25 * SMALL["d"],
        ),
        (lambda **changes: spalm(**sizes, **changes), {}, 0.02**2 * 64),  # it is the transformer_xl
        (lambda **changes: transformer_xl(**sizes, **changes), {}, 0.02**2 * 64),
        (lambda **changes: transformer_xl(**sizes, **changes), {"init": "normal"}, 0.02**2 * 410),
        (lambda **changes: transformer_xl(**sizes, **changes), {"std": 0.3}, 0.09 * 64),
    ):
        model = build(**keywords)
        assert model.head.weight is model.embedding.weight
        assert model.embedding.weight.square().sum(1).mean().item() == pytest.approx(length, rel=0.1)
    with pytest.raises(ValueError, match=r"std=0.0: give a number above 0"):
        spalm(**sizes, std=0.0)


def test_without_a_datastore_it_is_its_transformer_xl() -> None:
    words = {**SMALL, "segment": 5, "memory": 3, "vocab": 11}
    torch.manual_seed(0)
    ours = spalm(**words)  # type: ignore[arg-type]
    torch.manual_seed(0)
    theirs = transformer_xl(**words)  # type: ignore[arg-type]
    row = torch.arange(9)[None] % 11
    assert type(ours) is LM and ours.logits(row).y.equal(theirs.logits(row).y)
    assert set(inspect.signature(transformer_xl).parameters) < set(inspect.signature(spalm).parameters)
