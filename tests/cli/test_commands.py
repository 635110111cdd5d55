"""The commands, run as a user runs them; each wrong word ends in one line on stderr and exit code 2."""

import base64
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from time import sleep

import pytest

from kinformer import __version__
from kinformer.checkpoint.checkpoint import load, save
from kinformer.cli.__main__ import run
from kinformer.cli.support import static_source
from kinformer.cli.support.progress_bar import progress
from kinformer.core.discover import UNJUDGED, find_member, kinds, members, modules, part_files
from kinformer.core.keywords import signature
from kinformer.lab.data.resolve import resolve
from kinformer.lab.member_choice import folder_name, parse_member_text, titles
from kinformer.lab.train.training_interrupt import TrainingInterrupt
from kinformer.pages.module_docs import first_sentence

ROOT = Path(__file__).parents[2]
BIGRAM = f"{ROOT}/tests/lab/train/tiny.py:bigram"
QUICK = ["--batch", "2", "--length", "8"]


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text").write_bytes(b"the cat sat on the mat. " * 200)
    return f"text={tmp_path}/text"


def kinformer(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, "-m", "kinformer.cli", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)


def fails(capsys: pytest.CaptureFixture[str], words: list[str], message: str, code: int = 2) -> None:
    capsys.readouterr()
    assert run(words) == code
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("kinformer: ")]
    assert len(lines) == 1 and err.endswith(lines[0] + "\n") and message in lines[0], err
    assert "Traceback" not in err


# list, show, help ---------------------------------------------------------------------------------------------------


LISTS = [
    ["--help"],
    ["-h"],
    ["train", "--help"],
    ["compare", "-h"],
    ["list", "--help"],
    ["list"],
    ["claim"],
    ["show", "topics"],
    ["show", "data"],
    ["show", "compare"],
    ["--version"],
]
EARLY = {
    "--resume continues the run in --out, but --overw": "train gpt --data text=stdlib --resume --overwrite --out o",
    "there is no member 'gtp'; the nearest is 'gpt'": "train gtp --data text=stdlib --out o --steps 1",
    "has no keyword 'dept'": "train gpt dept=3 --data text=stdlib --out o --steps 1",
    "'dscount', nor has 'agent', which takes its layers; the nearest is 'discount'": (
        "train lstm dscount=1 --data env=t_maze --out o --steps 1"
    ),
    "the member 'gpt' has no keyword 'dd'": "evaluate {model} dd=3 --data text=stdlib",
    "'depth' of 'gpt' must be int, got 'two'": "cost gpt depth=two",
    "there is no member 'gtp'": "compare gpt gtp(d=3) --data text=stdlib --out o --steps 1",
    "gpt' has no keyword 'dd'": "compare gpt(dd=3) --data text=stdlib --out o --steps 1",
    "there is no file or folder none.py": "train none.py:mine --data text=stdlib --out o --steps 1",
    "no file or folder /none; write text=stdlib or text=PATH": "train gpt --data text=/none,field=a --out o --steps 1",
    "no file or folder /none; write pairs=FILE.tsv": "evaluate {model} --data pairs=/none",
    "empty holds no byte": "train gpt --data text={model}/empty --out o --steps 1",
    "there is no kind of data 'txt'": "train gpt --data txt=a --out o --steps 1",
    "text= has no option 'tokeniser'; the nearest is": "train gpt --data text=stdlib,tokeniser=a --out o --steps 1",
    "there is no task 'recal'; the nearest is 'recall'": "train gpt --data task=recal,pairs=4 --out o --steps 1",
    "give --valid a file": "train gpt --data text=stdlib --valid /none --out o --steps 1",
    "there is no file or folder none": "generate none",
    "holds one run: model; give": "fill {model}/.. --text a_b",
    "`kinformer datastore build` makes a datastore": "generate {model} --knn --datastore none",
    "`kinformer read` writes a saved text": "generate {model} --state none",
    "warmup=1.5: give a fraction of the training": "train gpt --data text=stdlib --out x --steps 1 --warmup 1.5",
    "wrong --warmup: got long, expected a fraction": "train gpt --data text=stdlib --out x --steps 1 --warmup long",
    "give warmup above 0": "train gpt --warmup 0 --data text=stdlib --out x --steps 1 --schedule noam",
    "betas=(0.9, 1.0): give two numbers": "train gpt --data text=stdlib --out x --steps 1 --betas 0.9,1",
    "wrong --betas: got 0.9;0.98, expected two": "train gpt --data text=stdlib --out x --steps 1 --betas 0.9;0.98",
    "eps=0.0: give a number above 0": "train gpt --data text=stdlib --out x --steps 1 --eps 0",
    "wrong --precision: got 'bf17', expected float32": "generate {model} --prompt a --precision bf17",
    "give one of --text TEXT and --texts FILE": "classify {model}",
    "'--split': 'foo' is not one of 'train', 'valid'": "evaluate {model} --data text=stdlib --split foo",
    "there is no claim 'nothing'; `kinformer claim` lists": "claim nothing",
    "there is no kind 'pattern'": "list pattern",
    "there is no kind 'laws'; `kinformer show laws` explains this topic": "list laws",
    "'d=3' is a keyword and no member; write it in brackets, such as 'gpt(d=3)'": (
        "compare gpt llama d=3 --data text=stdlib --out o --steps 1"
    ),
    "No such option: --seq_len; use --tokens instead": "generate {model} --seq_len 9",
    "No such option: --filter_thres; use --top-k instead": "generate {model} --filter_thres 0.9",
    "'bnad'; the nearest is 'Band'": "show bnad",
    "No such command 'trian'": "trian gpt",
}


def test_what_the_words_and_the_disk_can_tell_imports_nothing_heavy(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name, data in (("config.json", '{"member": "gpt"}'), ("results.json", ""), ("model.safetensors", "")):
        (model / name).write_text(data)
    (model / "empty").touch()
    words = [*LISTS, *(line.format(model=model).split() for line in EARLY.values())]
    code = f"""
import sys
from kinformer.cli.__main__ import run
heavy = "torch", "numpy", "matplotlib", "jaxtyping", "safetensors", "hypothesis"
for words in {words}:
    code = run(words)
    print(code, *(name for name in heavy if name in sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert done.stdout.count("Usage: kinformer") == 5 and "bigbird_paths" in done.stdout, done.stderr
    assert done.stdout.endswith(f"kinformer {__version__}\n")
    assert lines[: len(LISTS)] == ["0"] * len(LISTS)
    for message, line, code in zip(EARLY, lines[len(LISTS) :: 2], lines[len(LISTS) + 1 :: 2], strict=True):
        assert line.startswith("kinformer: ") and message in line and code == "2", (message, line, code)


def test_what_is_read_of_a_file_is_what_an_import_tells() -> None:
    for kind in kinds():
        for name, file in part_files(kind).items():
            assert static_source.first_sentence(file) == first_sentence(modules(kind)[name]), (kind, name)
    by_name = members()
    assert sorted(static_source.member_names()) == sorted(by_name)
    for name, function in by_name.items():
        like = static_source.member_stub(name)
        assert like is not None, name
        mine = signature(like).parameters.values()
        expected = [
            parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in signature(function).parameters.values()
        ]
        assert list(mine) == expected, name


def test_the_command_by_itself_shows_help() -> None:
    done = kinformer()
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("list", "show", "train", "generate", "compare"))


def test_list_names_every_kind_or_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list"]) == 0
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()[1:]]
    assert ["patterns", "band"] in [row[:2] for row in rows] and ["members", "gpt"] in [row[:2] for row in rows]
    assert {row[0] for row in rows} <= {*kinds(), *UNJUDGED, "data", "environments"} and all(
        len(row) == 3 for row in rows
    )
    assert ["environments", "t_maze"] in [row[:2] for row in rows]
    assert run(["list", "members"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]} == {"members"}
    fails(capsys, ["list", "member"], "there is no kind 'member'; the nearest is 'members'")


@pytest.mark.parametrize("words", [["train", "--data", "text=stdlib", "--steps", "1", "--out", "none"]])
def test_a_file_without_a_function_names_its_members(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    file = BIGRAM.removesuffix(":bigram")
    message = f"is a file; add a member in it, such as {file}:bigram (it has bigram, lane, classifier)"
    fails(capsys, [words[0], file, *words[1:]], message)
    fails(capsys, [words[0], str(ROOT / "tests/toys/pattern.py"), *words[1:]], "pattern.py has no member; put @member")
    fails(capsys, [words[0], "none.py", *words[1:]], "there is no file or folder none.py")


# train, generate ----------------------------------------------------------------------------------------------------


def test_train_then_generate(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ["train", "gpt", "d=16", "depth=1", "heads=2", "--data", text, "--out", str(out), "--steps", "3", *QUICK]
    assert run(words) == 0
    captured = capsys.readouterr()
    assert (
        "gpt(d=16, depth=1, heads=2): " in captured.out
        and "bits per byte" in captured.out
        and "step 3: " in captured.err
    )
    assert load(out).member.keywords["d"] == 16
    words = ["generate", str(out), "--prompt", "the ", "--tokens", "30", "--temperature", "0.5", "--seed", "3"]
    assert run(words) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("the ") and len(captured.out) > 20 and "30 tokens, " in captured.err
    assert captured.err.count("warning: 33 tokens are more than the 8 positions that this model has learned") == 1
    assert run(words) == 0
    assert capsys.readouterr().out == captured.out
    assert run([*words[:-1], "4", "--top-k", "5", "--top-p", "0.9"]) == 0
    outputs = {}
    for options in ((), ("--temperature", "0.6", "--top-p", "0.9"), ("--temperature", "1")):
        capsys.readouterr()
        assert run([*words[:6], *options]) == 0
        outputs[options] = capsys.readouterr().out
    usual, spelt, as_it_is = outputs.values()
    assert usual == spelt != as_it_is
    fails(
        capsys,
        ["generate", str(out), "--prompt", "x", "--top-p", "2"],
        "wrong --top-p: got 2, expected a probability above 0",
    )
    assert run(["generate", str(out), "--prompt", "x", "--top-p", "2"]) == 2
    assert capsys.readouterr().out == ""
    fails(capsys, ["generate", str(out), "--prompt", ""], "the prompt is empty")


def test_a_member_of_ones_own_is_trained_and_needed_again(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    words = ["train", BIGRAM, "d=4", "--data", text, "--out", out, "--steps", "300", "--lr", "0.03", *QUICK]
    assert run(words) == 0
    fails(
        capsys,
        ["generate", out, "--prompt", "th"],
        "was built by the member 'bigram' in tiny.py. Give --member tiny.py:bigram",
    )
    assert run(["generate", out, "--prompt", "th", "--member", BIGRAM, "--temperature", "0", "--tokens", "4"]) == 0
    assert capsys.readouterr().out.startswith("the ")


def test_a_changed_file_and_a_missing_state_are_said_in_a_line_each(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mine, out = tmp_path / "mine.py", str(tmp_path / "run")
    mine.write_text(
        "from kinformer import member\n"
        "from kinformer.core.mechanism import NoState\n"
        "from tests.lab.train.tiny import Bigram\n"
        "class Forgets(Bigram):\n"
        "    def start(self, *shape, **where):\n"
        "        raise NoState('it keeps none')\n"
        "@member\n"
        "def forgets(d: int = 4):\n"
        "    return Forgets(d)\n"
    )
    words = ["train", f"{mine}:forgets", "--data", text, "--out", out, "--steps", "1", *QUICK]
    fails(capsys, words, "this forgets predicts the next token but cannot decode token by token: it keeps none")
    save(find_member(f"{mine}:forgets")(), out)
    mine.write_text(mine.read_text() + "# changed\n")
    capsys.readouterr()
    assert run(["generate", out, "--prompt", "th", "--member", f"{mine}:forgets", "--tokens", "2"]) == 0
    err = capsys.readouterr().err.splitlines()
    assert err[0] == f"warning: mine.py has changed since the model in {out} was saved"
    assert err[1] == "this model has no decoding state: it reads the whole text again for each token" and len(err) == 3


def test_a_member_that_fills_in_is_trained_and_neither_writes_nor_is_compared_with_one_that_does(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, small = str(tmp_path / "run"), ["d=16", "depth=1", "heads=2"]
    assert run(["train", "bert", *small, "--data", text, "--out", out, "--steps", "3", *QUICK]) == 0
    captured = capsys.readouterr()
    assert " bits per masked byte on the first 240 bytes of valid" in captured.out
    assert " bits per masked byte, " in captured.err
    fails(
        capsys,
        ["generate", out, "--prompt", "the "],
        "this bert fills in masked bytes and cannot continue a text; fill them in with `kinformer fill DIR",
    )
    words = ["compare", "gpt", "bert(depth=1)", "--data", text, "--minutes", "9", "--out", str(tmp_path / "all")]
    fails(capsys, words, "got bits per byte (gpt), bits per masked byte (bert(depth=1)), expected one metric")


def test_what_reads_ahead_is_refused_before_a_step(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["gpt", "d=16", "depth=1", "heads=2"]
    options = ["--data", text, "--out", str(tmp_path / "run"), "--steps", "1", *QUICK]
    fails(capsys, ["train", *small, "pattern=Band(4)", *options], "this gpt reads ahead")
    assert not (tmp_path / "run" / "config.json").exists()
    assert run(["train", *small, "pattern=Causal() & Band(4)", "position=rotary", *options]) == 0
    assert load(tmp_path / "run").member.keywords["pattern"] == "Causal() & Band(4)"


def test_beyond_the_length_of_training_a_line_says_so(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    assert run(["train", BIGRAM, "--data", text, "--out", out, "--steps", "1", *QUICK]) == 0
    capsys.readouterr()
    words = ["generate", out, "--prompt", "the ", "--member", BIGRAM, "--tokens"]
    assert run([*words, "4"]) == 0
    assert "warning" not in capsys.readouterr().err
    assert run([*words, "5"]) == 0
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2 and err[0].startswith("warning: got 9 tokens, but the model was trained on rows of 8")


def test_another_model_is_never_overwritten(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    options = ["--data", text, "--out", str(out), "--steps", "1", *QUICK]
    assert run(["train", BIGRAM, "d=4", *options]) == 0
    before = (out / "model.safetensors").read_bytes()
    words = (
        "holds a model of 'bigram' of tiny.py that was trained before, which would be overwritten. Give another --out"
    )
    fails(capsys, ["train", BIGRAM, "d=5", *options], words)
    fails(capsys, ["train", "gpt", *options], words)
    assert (out / "model.safetensors").read_bytes() == before
    assert run(["train", BIGRAM, "d=4", *options, "--seed", "1", "--overwrite"]) == 0
    assert (out / "model.safetensors").read_bytes() != before
    (out / "config.json").unlink()
    fails(capsys, ["train", BIGRAM, "d=4", *options], "holds a model.safetensors without its config.json")
    (out / "config.json").write_text("{}")
    fails(capsys, ["train", BIGRAM, "d=4", *options], "holds a config.json that was not written by kinformer")


def test_a_wrong_start_is_said_before_what_would_be_overwritten(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "gpt", "d=16", "depth=1", "--data", text, "--out", str(tmp_path / "run"), "--steps", "1"]
    assert run(command) == 0
    fails(capsys, [*command, "--from", str(tmp_path / "none")], f"there is no file or folder {tmp_path / 'none'}")
    fails(capsys, [*command, "--from", str(tmp_path / "run")], "which would be overwritten")


def test_compare_goes_over_an_earlier_one_only_where_it_may(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = f"{text},documents=joined", tmp_path / "all"
    options = ["--data", whole, "--out", str(out), "--minutes", "0.002", *QUICK]
    assert run(["compare", BIGRAM, f"{BIGRAM}(d=3)", *options]) == 0
    results, plan = (json.loads((out / name).read_text()) for name in ("results.json", "comparison.json"))
    assert results["settings"]["data"] == plan["data"] == whole
    heads = next(line for line in capsys.readouterr().out.splitlines() if "parameters" in line and "bits" in line)
    assert len(heads) > 80 and "tokens/s" in heads and "ms per token" in heads and "memory" in heads  # none is cut
    fails(capsys, ["compare", BIGRAM, f"{BIGRAM}(d=3)", *options], "holds a comparison, which would be overwritten")
    fails(capsys, ["compare", BIGRAM, *options, "--resume"], "got bigram, expected bigram, bigram(d=3). Pass the same")
    other = ["compare", BIGRAM, f"{BIGRAM}(d=3)", "--data", f"{text},documents=lines", *options[2:], "--resume"]
    fails(capsys, other, "got documents=lines, expected documents=joined in --data. Pass documents=joined")
    assert run(["compare", BIGRAM, f"{BIGRAM}(d=3)", *options, "--overwrite"]) == 0
    for name in ("results.json", "comparison.json"):
        (out / name).unlink()
    assert run(["train", "gpt", "d=16", "depth=1", "--data", text, "--out", f"{out}/gpt", "--steps", "1"]) == 0
    fails(capsys, ["compare", "gpt", "gpt(d=16)", *options], "gpt holds a model of 'gpt' with d=16, which would be")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gtp", "--steps", "1"], "there is no member 'gtp'; the nearest is 'gpt'"),
        (["gpt", "dept=3", "--steps", "1"], "the member 'gpt' has no keyword 'dept'; the nearest is 'depth'"),
        (["gpt", "depth=two", "--steps", "1"], "the keyword 'depth' of 'gpt' must be int, got 'two'"),
        (["gpt", "depth", "--steps", "1"], "'depth' is not a keyword; write name=value"),
        (["gpt", "d=10", "heads=3", "--steps", "1"], "d=10 is not a multiple of heads=3"),
        (["gpt"], "give either --steps N or --minutes M"),
        (["gpt", "--steps", "1", "--minutes", "1"], "give either --steps N or --minutes M"),
        (["gpt", "--steps", "0"], "wrong number of steps: got 0, expected at least 1"),
        (["gpt", "--minutes", "-1"], "wrong number of minutes: got -1, expected a number above 0"),
        (["gpt", "--steps", "x"], "valid integer"),
        (["gpt", "--steps", "1", "--lr", "0"], "wrong lr: got 0.0, expected a number above 0"),
        (["llama", "d=16", "--steps", "1", "--length", "100000"], "got 3,600... bytes, but a window of"),
        (
            ["gpt", "length=8", "--steps", "1", "--length", "9"],
            "gpt(length=8): rows have 9 tokens, but it has only 8 learned positions; train it on a length of 8",
        ),
        (["gpt", "--step", "1"], "No such option: --step (Possible options: --eps, --steps, --then)"),
        (["gpt", "--depth", "2"], "--depth; keywords of a member have no dashes: write depth=VALUE"),
        (["gpt", "--n-layer", "2"], "--n-layer; keywords of a member have no dashes: write depth=VALUE"),
        (["gpt", "--d", "2"], "--d; keywords of a member have no dashes: write d=VALUE"),
        (["gpt", "--save_steps", "2"], "--save_steps; a run is saved every ten seconds"),
        (["gpt", "--model_name_or_path", "x"], "the member is given without an option, as the first word"),
        (["gpt", "--validation_file", "x"], "No such option: --validation_file; use --valid instead"),
        (["gpt", "--config", "x"], "No such option: --config; `kinformer train --help` lists the options"),
        (["gpt", "--learning-rate", "1"], "No such option: --learning-rate; use --lr instead"),
        (["gpt", "n_head=2", "--steps", "1"], "the member 'gpt' has no keyword 'n_head'; use 'heads' instead"),
        (["gpt", "--steps", "1", "--data", "text=/none"], "there is no file or folder /none"),
        (["gpt", "--steps", "1", "--data", "txt=/none"], "there is no kind of data 'txt'; the nearest is 'text'"),
        (["gpt", "--steps", "1", "--out", "/proc/none"], "cannot write to /proc/none"),
        (
            ["transformer", "depth=1", "d=16", "--steps", "1"],
            "transformer(depth=1, d=16) reads pairs, but got a text; give pairs=FILE.tsv",
        ),
        (["none.py:f", "--steps", "1"], "there is no file or folder none.py"),
        # before any of it is read
        (
            ["gpt", "--steps", "1", "--data", f"labelled={__file__}"],
            "kinformer: gpt reads a text, but got labelled text; give text=",
        ),
    ],
)
def test_a_wrong_word_of_train_is_said_in_one_line(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    command = ["train", *words]
    command += [] if "--data" in words else ["--data", text]
    command += [] if "--out" in words else ["--out", str(tmp_path / "run")]
    fails(capsys, command, message.replace("3,600...", "4,320"))
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    fails(
        capsys,
        ["train", "gpt", "--steps", "1"],
        "Missing option '--data'. Expected: Data as KIND=PLACE, with options after commas: text=stdlib; text=PATH,",
    )
    fails(capsys, ["train"], "Missing argument")
    fails(capsys, ["generate", str(tmp_path), "--prompt", "x"], "it has no config.json")
    fails(capsys, ["generate", str(tmp_path / "none"), "--prompt", "x"], "there is no file or folder")
    (tmp_path / "file").touch()
    fails(capsys, ["generate", f"{tmp_path}/file", "--prompt", "x"], "file is a file, but a model is a folder")
    words = ["train", BIGRAM, "--data", "text=stdlib", "--steps", "1", "--out", f"{tmp_path}/file"]
    fails(capsys, words, f"wrong --out: got the file {tmp_path}/file, expected a folder")
    fails(capsys, ["trian"], "No such command 'trian'")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", "gpt"], "No such command 'sweep'; `kinformer compare` with --grid lr=1e-3,3e-3 tries"),
        (["quux"], "No such command 'quux'; write kinformer --help for a list"),
        (["show", "Trainer"], "no part or member 'Trainer'; use 'fit' instead: `kinformer show fit`"),
        (["show", "AutoTokenizer"], "no part or member 'AutoTokenizer'; fit(model, data, tokenizer=...) takes a"),
        (["generate", "--model", "x"], "No such option: --model; the folder is given without an option"),
        (["generate", "x", "--max_new_tokens", "3"], "No such option: --max_new_tokens; use --tokens instead"),
        (["generate", "x", "--max_length", "3"], "use --tokens instead, which does not count the prompt"),
        (["evaluate", "run", "--batch_size", "3"], "--batch_size; `kinformer evaluate --help` lists the options"),
        (["evaluate", "run", "--heads", "3"], "--heads; keywords of a member have no dashes: write heads=VALUE"),
        (
            ["compare", "gpt", "d=8", "--data", "text=stdlib"],
            "is a keyword and no member; write it in brackets, such as 'gpt(d=8)'",
        ),
        (
            ["train", "run", "--data", "text=stdlib", "--out", "x"],
            "run is a run, not a member: write gpt, with --out run",
        ),
        (["train", "gpt", "--data", "novel.txt", "--out", "x"], "write text=novel.txt for a text, or env=ID"),
    ],
)
def test_words_of_other_programs_are_answered(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"member": "gpt"}')
    fails(capsys, words, message)


@pytest.mark.parametrize(("stop", "code"), [(KeyboardInterrupt(), 130), (TrainingInterrupt("", signal.SIGTERM), 143)])
def test_a_signal_anywhere_is_said_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], stop: BaseException, code: int
) -> None:
    def commands(*words: object, **keywords: object) -> None:
        raise stop

    monkeypatch.setattr("kinformer.cli.__main__.COMMANDS", commands)
    assert run(["list"]) == code and capsys.readouterr().err == "kinformer: stopped\n"


@pytest.mark.parametrize(
    ("recent", "left"),
    [(20, "33:20"), (None, "17:30")],  # 100 times 20 s, or 10.5 s on average
)
def test_how_long_is_left_follows_the_last_pace_and_something_is_said_at_once(
    recent: int | None, left: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("kinformer.cli.support.progress_bar.monotonic", lambda: now[0])
    monkeypatch.setattr("kinformer.cli.support.progress_bar.SILENT", 0.01)
    with progress("writing", 200, "texts", recent) as on_progress:
        for _ in range(500):
            sleep(0.01)
            if error := capsys.readouterr().err:
                break
        assert error == "writing: 200 texts ...\n"
        for done in range(1, 101):
            now[0] += 1 if done <= 50 else 20
            on_progress(done)
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"writing: 100 of 200 texts, {left} left"


def test_a_loss_that_is_not_finite_is_a_failure_in_one_line(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", BIGRAM, "--data", text, "--out", str(tmp_path / "run"), "--steps", "50", "--lr", "1e38", *QUICK]
    fails(capsys, words, "the weights before this step are saved in", code=1)


def test_errors_have_their_traceback_where_it_is_asked_for() -> None:
    done = kinformer("show", "Bund", KINFORMER_DEBUG="1")
    assert done.returncode == 1 and "Traceback" in done.stderr and "UserError" in done.stderr
    done = kinformer("show", "Bund")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stdout == ""


def test_ctrl_c_saves_says_so_in_one_line_and_exits_with_130(tmp_path: Path, text: str) -> None:
    out = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "kinformer.cli",
        "train",
        BIGRAM,
        "--data",
        text,
        "--out",
        str(out),
        "--minutes",
        "9",
    ]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*command, *QUICK], cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for message in ("bytes for training", "warning: the validation data has only 240 bytes", "step 1: "):
        assert message in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    last = err.splitlines()[-1]
    assert process.returncode == 130 and last.startswith("kinformer: stopped at step ") and "Traceback" not in err
    assert (out / "model.safetensors").is_file() and (out / "config.json").is_file()


def test_ctrl_c_before_anything_began_exits_with_130(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    command = [
        sys.executable,
        "-m",
        "kinformer.cli",
        "train",
        "gpt",
        "--data",
        f"text={fifo}",
        "--out",
        f"{tmp_path}/o",
    ]
    process = subprocess.Popen(
        [*command, "--steps", "1"],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it else
    )
    try:
        handle = os.open(fifo, os.O_WRONLY)  # returns once the command reads
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        os.close(handle)
    finally:
        process.kill()
    assert process.returncode == 130 and err == "kinformer: stopped\n"


# compare ------------------------------------------------------------------------------------------------------------


def test_compare_trains_each_and_shows_one_table(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all"
    small = "gpt(d=16, depth=1, heads=2)"
    words = ["compare", small, small, BIGRAM, "--data", text, "--out", str(out), "--minutes", "0.005", *QUICK]
    assert run(words) == 0
    output, err = capsys.readouterr()
    assert "bigram (3 of 3): measuring on 240 bytes of validation data ..." in err
    assert "bigram: generating a sample and measuring its speed ..." in err
    warned = [line.split(",")[0] for line in err.splitlines() if "warning" in line]
    assert warned == ["warning: the validation data has only 240 bytes"]
    results = json.loads((out / "results.json").read_text())
    assert [row["name"] for row in results["members"]] == [small, f"{small}#2", "bigram"]
    for row in results["members"]:
        assert row["name"] in output and f"{row['bits_per_byte']:.3f}" in output and f"{row['parameters']:,}" in output
        assert row["points"] and len(row["sample"]) == 4  # no further than the 8 of a row in training
        assert row["ms_per_token"] > 0 and row["tokens_per_second"] > 0
        config = json.loads((out / row["folder"] / "config.json").read_text())
        assert config["keywords"] == row["keywords"]
    assert results["members"][0]["parameters"] == sum(
        p.numel() for p in load(out / results["members"][0]["folder"]).parameters()
    )
    valid = (b"the cat sat on the mat. " * 200)[4320:4560]
    assert results["settings"]["valid_bytes"] == len(valid) == 240
    assert set(results["compressors"]) == {"gzip -9", "xz -9e"}
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert {"data", "seed", "batch", "length", "lr", "versions", "hardware"} <= set(results["settings"])


def test_the_compressors_are_the_programs_own(tmp_path: Path) -> None:
    from kinformer.cli.support.training import prepare

    data = base64.b64encode(os.urandom(375)) * 40
    (tmp_path / "text").write_bytes(data * 20)
    job = prepare(resolve(f"text={tmp_path}/text"), 1, None, batch=2, length=8)
    valid = bytes(job.text.valid[: job.valid_bytes].tolist())
    levels = job.data.levels(find_member("gpt")(d=8, depth=1, heads=1), "valid", 8, job.valid_bytes)
    for name, command in (("gzip -9", ["gzip", "-9"]), ("xz -9e", ["xz", "-9e"])):
        size = len(subprocess.run(command, input=valid, capture_output=True, check=True).stdout)
        assert levels[name] == pytest.approx(8 * size / len(valid), rel=0.02)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt", "gtp"], "there is no member 'gtp'"),
        (["gpt", "zzzzzz"], "there is no member 'zzzzzz'; `kinformer list members` lists them all"),
        (["gpt(dept=2)"], "the member 'gpt' has no keyword 'dept'; the nearest is 'depth'"),
        (["gpt(depth=2"], "'gpt(depth=2' is not a member; write gpt, or 'gpt(depth=2, heads=4)' in quotes"),
        (["gpt", "gpt(d=10, heads=3)"], "d=10 is not a multiple of heads=3"),
        (["gpt", "gpt(length=64)"], "gpt(length=64): rows have 128 tokens, but it has only 64 learned positions"),
        ([], "Missing argument"),
    ],
)
def test_a_wrong_word_of_compare_is_said_before_anything_is_trained(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    fails(capsys, ["compare", *words, "--data", text, "--minutes", "9", "--out", str(tmp_path / "all")], message)
    assert not (tmp_path / "all" / "results.json").exists()


def test_a_member_with_keywords_in_brackets() -> None:
    assert parse_member_text("gpt").keywords == {}
    member = parse_member_text(" gpt( depth = 2, heads=4 ) ")
    assert member.function.__name__ == "gpt" and member.keywords == {"depth": 2, "heads": 4}
    assert parse_member_text(f"{BIGRAM}(d=3)").keywords == {"d": 3}
    assert parse_member_text("gpt()").keywords == {}


def test_titles_tell_members_apart_and_make_folders() -> None:
    names = titles([parse_member_text(text) for text in ("gpt", "gpt(depth=2)", "gpt", BIGRAM, f"{BIGRAM}(d=3)")])
    assert names == ["gpt", "gpt(depth=2)", "gpt#2", "bigram", "bigram(d=3)"]
    assert [folder_name(title) for title in names] == ["gpt", "gpt-depth=2", "gpt#2", "bigram", "bigram-d=3"]


def test_pairs_are_trained_on_and_written_from_a_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "pairs.tsv", tmp_path / "run"
    file.write_text("".join(f"ask {n}\tsay {n}\n" for n in range(40)))
    small = ["transformer", "d=16", "depth=1", "heads=2", "hidden=16", "--data", f"pairs={file}"]
    assert run(["train", *small, "--out", str(out), "--steps", "2"]) == 0
    assert "bits per token on 2 pairs of valid at the last step, 2," in capsys.readouterr().out
    assert load(out).trained_length == 7
    assert run(["generate", str(out), "--source", "ask 3", "--tokens", "5", "--seed", "1"]) == 0
    assert capsys.readouterr().err.splitlines()[-1].endswith(" ms per token")
    assert run(["generate", str(out), "--source", "ask 3", "--prompt", "say", "--tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("say")
    fails(capsys, ["generate", str(out), "--prompt", "x"], "this model needs a source text. Give --source TEXT")
    fails(capsys, ["generate", str(out), "--source", ""], "the source is empty")
    no_run = tmp_path / "none"
    fails(capsys, ["train", "gpt", *small[-2:], "--steps", "1", "--out", str(no_run)], "reads a text, but got pairs")
    file.write_text("a\tb\nc\n")
    fails(capsys, ["train", *small, "--steps", "1", "--out", str(no_run)], "line 2 of pairs=")
    assert not no_run.exists()


# what is refused before it is taken ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpt", "d=1000000"], "the weights and their gradients need about"),
        (["gpt", "d=16", "--batch", "100000000"], "or split it with --accumulate"),
        (["gpt", "depth=100000000"], "give at most 2,000"),
        (["gpt", "vocab=10"], "a text has 256 kinds of bytes"),
        (["gpt", "d=16", "--steps", "3"], "--steps is given twice"),
        (["llama", "d=16", "--length", "100000"], "is too short"),
    ],
)
def test_a_refused_training_leaves_nothing_behind(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = tmp_path / "deep" / "out"
    out.parent.mkdir()
    fails(capsys, ["train", *words, "--data", text, "--steps", "2", "--out", str(out)], message)
    assert not out.exists()


def test_a_refused_comparison_leaves_no_folder(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "all"
    words = ["compare", BIGRAM, "bert", "--data", text, "--out", str(out), "--minutes", "0.001", *QUICK]
    fails(capsys, words, "cannot compare by several metrics")
    assert not out.exists()


@pytest.mark.parametrize("warmup", ["0.1", "3"])
def test_options_of_two_forms_have_the_type_that_they_say(warmup: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abcdefgh" * 100)
    words = ["train", "gpt", "d=8", "depth=1", "heads=2", "--data", f"text={tmp_path / 'text'}", "--steps", "1"]
    options = ["--batch", "2", "--length", "8", "--betas", "0.9,0.98", "--out", str(tmp_path / "run")]
    assert run([*words, *options, "--warmup", warmup]) == 0
