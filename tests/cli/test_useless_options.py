"""An option of a command or of data that would change nothing is refused, in one line that names it."""

from pathlib import Path
from typing import Any

import numpy
import pytest

from kinformer.lab.data.spec import read_spec
from tests.cli.folders import folder
from tests.cli.test_commands import fails

TEXT = "the cat sat on the mat\n\nand the dog lay beside it\n"
TRAIN = ["--steps", "1", "--batch", "2"]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text(TEXT * 40)
    (tmp_path / "rows.jsonl").write_text('{"text": "one row"}\n{"text": "another row"}\n' * 20)
    (tmp_path / "pairs.tsv").write_text("".join(f"a{n}\tb{n}\n" for n in range(30)))
    (tmp_path / "labels.tsv").write_text("".join(f"{n % 2}\ttext {n}\n" for n in range(30)))
    (tmp_path / "series.csv").write_text("a,b\n" + "".join(f"{n % 7},{n % 5}\n" for n in range(60)))
    arrays: dict[str, Any] = {}
    for split in ("train", "test"):
        arrays |= {f"x_{split}": numpy.zeros((20, 2, 2), numpy.uint8), f"y_{split}": numpy.zeros(20, numpy.int64)}
    numpy.savez(tmp_path / "pictures.npz", **arrays)
    return tmp_path


SPECS = {
    "text=rows.jsonl,documents=lines": "documents=lines has no effect on text=rows.jsonl: each row is a document",
    "text=stdlib,field=body": "field=body has no effect on text=stdlib, which holds no JSON lines; leave it out",
    "pairs=pairs.tsv,source=en": "source=en has no effect on pairs=pairs.tsv: it holds no JSON lines; leave it out",
    "pairs=pairs.tsv,target=de": "target=de has no effect on pairs=pairs.tsv",
    "labelled=labels.tsv,label=kind": "label=kind has no effect on labelled=labels.tsv",
    "labelled=labels.tsv,text=body": "text=body has no effect on labelled=labels.tsv",
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_keyword_of_data_without_effect_is_refused(spec: str, place: Path) -> None:
    with pytest.raises(ValueError, match=f"^{SPECS[spec]}") as error:
        read_spec(spec)
    assert "\n" not in str(error.value)


def test_keywords_that_have_an_effect_are_taken(place: Path) -> None:
    read_spec("text=rows.jsonl,documents=joined"), read_spec("text=rows.jsonl,field=text")
    read_spec("text=text,documents=lines"), read_spec("text=text,documents=joined")


WORDS: dict[str, list[Any]] = {
    "--length has no effect on": ["train", "gpt", "--data", "task=copy", "--length", "64", *TRAIN, "--out", "o"],
    "--length has no effect": ["compare", "gpt", "--data", "task=copy", "--length", "64", *TRAIN, "--out", "o"],
    "--parallel has no effect in one process": [
        "train",
        "gpt",
        "--data",
        "text=text",
        "--parallel",
        "shard",
        *TRAIN,
        "--out",
        "o",
    ],
    "--match has no effect with one member": [
        "compare",
        "gpt",
        "--data",
        "text=text",
        "--match",
        "parameters",
        *TRAIN,
        "--out",
        "o",
    ],
    "--length has no effect on informer": ["cost", "informer", "--length", "64"],
    "--length has no effect on image_transformer": ["cost", "image_transformer", "depth=1", "--length", "64"],
    "--cost has no effect on the topic 'sparse'": ["show", "sparse", "--cost"],
    "--seeds has no effect when claims are listed; leave it out, or name a claim": ["claim", "--seeds", "4"],
    "--random has no effect when all actions are random": ["play", "--env", "t_maze", "--random", "0.3"],
    "--seed has no effect when no token is random": ["generate", "gpt", "--prompt", "a", "--beam", "2", "--seed", "4"],
    "--seed has no effect": ["generate", "gpt", "--prompt", "a", "--temperature", "0", "--seed", "4"],
    "--temperature 0 takes the likeliest token": [
        "generate",
        "gpt",
        "--prompt",
        "a",
        "--temperature",
        "0",
        "--top-k",
        "4",
    ],
    "--temperature 0 takes the likeliest token and does not sample; leave out --min-p": [
        "generate",
        "gpt",
        "--prompt",
        "a",
        "--temperature",
        "0",
        "--min-p",
        "0.1",
    ],
    "--beam 2 does not sample; leave out --min-p": [
        "generate",
        "gpt",
        "--prompt",
        "a",
        "--min-p",
        "0.1",
        "--beam",
        "2",
    ],
    "--beam 2 does not sample": ["generate", "gpt", "--prompt", "a", "--temperature", "0.5", "--beam", "2"],
    "--best 2 needs a beam search that keeps 2 texts or more; give --beam 2": [
        "generate",
        "gpt",
        "--prompt",
        "a",
        "--best",
        "2",
    ],
    "--prompt-lookup gives the text of greedy decoding; add --temperature 0": [
        "generate",
        "gpt",
        "--prompt",
        "a",
        "--prompt-lookup",
        "4",
    ],
    "--prompt-lookup continues a single text; give --prompt TEXT": [
        "generate",
        "gpt",
        "--prompts",
        "text",
        "--temperature",
        "0",
        "--prompt-lookup",
        "4",
    ],
    "--prompt-lookup cannot be combined with --compile": [
        "generate",
        "gpt",
        "--prompt",
        "a",
        "--temperature",
        "0",
        "--prompt-lookup",
        "4",
        "--compile",
    ],
    "--length-penalty has no effect without --beam": ["generate", "gpt", "--prompt", "a", "--length-penalty", "1"],
    "--tokens has no effect on a model that generates pictures": [
        "generate",
        "pictures",
        "--out",
        "a.png",
        "--tokens",
        "9",
    ],
    "--windows has no effect with --out FILE.csv": [
        "forecast",
        "informer",
        "--data",
        "series=series.csv",
        "--out",
        "next.csv",
        "--windows",
        "2",
    ],
    "--length has no effect on a series": ["evaluate", "informer", "--data", "series=series.csv", "--length", "9"],
    "--epsilon has no effect with --search": [
        "calibrate",
        "calm",
        "--data",
        "text=text",
        "--search",
        "9",
        "--epsilon",
        "0.1",
    ],
    "length=7 has no effect with position=rotary": [
        "train",
        "gpt",
        "position=rotary",
        "length=7",
        "--data",
        "text=text",
        *TRAIN,
        "--out",
        "o",
    ],
    "length=7 has no effect": [
        "train",
        "gpt",
        "position=rotary",
        "length=7",
        "--data",
        "env=t_maze",
        *TRAIN,
        "--out",
        "o",
    ],
    "bounded=false has no effect with discrete=true": [
        "train",
        "decision_transformer",
        "bounded=false",
        "--data",
        "offline=episodes.npz",
        *TRAIN,
        "--out",
        "o",
    ],
}
MODELS: dict[str, dict[str, Any]] = {
    "gpt": {"length": 64},
    "calm": {"depth": 2, "length": 64},
    "image_transformer": {"shape": (1, 2, 2)},
    "informer": {"channels": 2, "calendar": 0, "context": 8, "label": 4, "horizon": 2},
}


@pytest.mark.parametrize("says", WORDS)
def test_an_option_without_effect_is_refused(says: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = list(WORDS[says])
    name = {"pictures": "image_transformer"}.get(words[1], words[1])
    if words[0] in ("generate", "evaluate", "forecast", "calibrate"):
        folder(place / words[1], name, **MODELS[name])
    if "episodes.npz" in str(words):
        starts = numpy.arange(40) % 4 == 0
        arrays = {"obs": numpy.zeros((40, 2)), "rewards": numpy.ones(40), "episode_starts": starts}
        arrays["obs"][:, 0] = numpy.arange(40)
        numpy.savez(place / "episodes.npz", actions=numpy.arange(40) % 2, **arrays)
    fails(capsys, words, says)
    assert not (place / "o").exists()
