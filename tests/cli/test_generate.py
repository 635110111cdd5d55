"""`kinformer generate`: several prompts, stops, searches; and one line for what is wrong."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.checkpoint import load
from kinformer.cli.__main__ import run
from kinformer.cli.compare import compare as cli_compare
from kinformer.cli.generate import generate as cli_generate
from kinformer.decoding import compiled_steps
from kinformer.decoding.generate import generate
from kinformer.decoding.sampling import TEMPERATURE, TOP_P
from kinformer.lab.compare.samples import draw_sample
from kinformer.lab.text_continuation import WritingSettings, write_all
from kinformer.lab.train.settings import Settings
from tests.cli.folders import folder
from tests.cli.test_commands import fails
from tests.lab.train import tiny
from tests.unhooked import process

PROMPTS = [b"a", b"the cat sat", b"\xff\xfe no UTF-8", b"on"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts"
    path.write_bytes(b"\r\n".join(PROMPTS) + b"\n")
    return path


def texts(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert run(["generate", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)["texts"]


@pytest.mark.parametrize("name", ["gpt", "transformer_xl"])
def test_each_prompt_of_a_file_is_written_on_as_alone(
    name: str, tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder(tmp_path / "run", name)
    model = load(out)
    sampling = ["--temperature", 0.7, "--top-k", 9, "--seed", 4]
    for words in [["--temperature", 0], ["--beam", 3], sampling] if name == "gpt" else [sampling]:
        together = texts(capsys, out, "--prompts", file, "--tokens", 7, *words)
        assert [text["prompt"] for text in together] == [p.decode(errors="replace") for p in PROMPTS]
        for number, (prompt, text) in enumerate(zip(PROMPTS, together, strict=True)):
            keywords: dict[str, Any] = {"temperature": 0}
            if "--beam" in words:
                keywords = {"beam": 3}
            if "--seed" in words:
                keywords = {"temperature": 0.7, "top_k": 9, "seed": 4 + number}
            alone = generate(model, torch.tensor([list(prompt)]), 7, **keywords)[0, len(prompt) :]
            assert text["tokens"] == alone.tolist() and not text["ended"]
            assert text["text"] == bytes(text["tokens"]).decode(errors="replace")


def test_what_is_warned_of_stands_before_the_prompt_and_not_within_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, output = folder(tmp_path / "run", "gpt", length=16), io.StringIO()
    monkeypatch.setattr("sys.stdout", output), monkeypatch.setattr("sys.stderr", output)
    assert run(["generate", str(out), "--prompt", "ab", "--tokens", "20", "--temperature", "0"]) == 0
    warned, written, *_ = output.getvalue().splitlines()
    assert warned.startswith("warning: ") and written.startswith("ab")


def test_log_probabilities_are_the_models(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder(tmp_path / "run", "gpt")
    model = load(out)
    for words in (["--beam", 2], ["--temperature", 0.5]):
        for prompt, text in zip(PROMPTS, texts(capsys, out, "--prompts", file, "--tokens", 7, *words), strict=True):
            row = torch.tensor([[*prompt, *text["tokens"]]])
            likely = model.logits(row).y[0].log_softmax(-1)[len(prompt) - 1 : -1]
            expected = likely.take_along_dim(row[0, len(prompt) :, None], 1).sum()
            assert text["log_probability"] == pytest.approx(float(expected.detach()), rel=1e-3)


def test_python_and_the_command_draw_alike(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a word of temperature, top k and top p: 0.6 and 0.9, and another text than at temperature 1."""
    out = folder(tmp_path / "run", "gpt")
    model, prompts = load(out), [list(prompt) for prompt in PROMPTS]

    def tokens(**words: float) -> list[list[int]]:
        return generate(model, prompts, 20, seed=3, **words)[:, max(map(len, prompts)) :].tolist()

    written = [text["tokens"] for text in texts(capsys, out, "--prompts", file, "--tokens", 20, "--seed", 3)]
    assert written == tokens() == tokens(temperature=TEMPERATURE, top_p=TOP_P) != tokens(temperature=1.0)


def test_the_default_is_said_wherever_texts_are_sampled() -> None:
    for text in (cli_generate.__doc__, cli_compare.__doc__, generate.__doc__):
        words = " ".join((text or "").split())
        assert str(TEMPERATURE) in words and str(TOP_P) in words


def test_a_comparison_samples_as_generate_does(tmp_path: Path) -> None:
    model, text = load(folder(tmp_path / "run", "gpt", length=512)), tiny.text()
    sample = draw_sample(model, text, Settings(seed=5))
    expected = generate(model, list(sample.prompt), len(sample.sample), seed=5)[0, len(sample.prompt) :]
    assert sample.sample == bytes(expected.tolist())


@pytest.mark.parametrize("words", [["--temperature", "0"], ["--beam", "2"]])
def test_a_text_ends_where_the_stop_was_written(
    words: list[str], tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder(tmp_path / "run", "gpt")
    free = texts(capsys, out, "--prompts", file, "--tokens", 20, *words)
    new = [bytes(text["tokens"]) for text in free]
    pairs = (row[n : n + 2] for row in new for n in range(19) if row[n : n + 2].isascii() and row[n : n + 2].isalnum())
    stop = next(pairs).decode()
    ended = texts(capsys, out, "--prompts", file, "--tokens", 20, "--stop", stop, *words)
    assert any(text["ended"] for text in ended)
    for text in ended:
        assert text["ended"] == (stop in text["text"]) and text["text"].endswith(stop) == text["ended"]
        assert text["ended"] or len(text["tokens"]) == 20
    if words[0] == "--temperature":  # what is drawn before the stop is what is drawn without it
        for text, other in zip(ended, free, strict=True):
            assert other["tokens"][: len(text["tokens"])] == text["tokens"]
    capsys.readouterr()
    prompt = PROMPTS[1].decode()
    assert run(["generate", out, "--prompt", prompt, "--tokens", "20", "--stop", stop, *words]) == 0
    assert capsys.readouterr().out == f"{prompt}{ended[1]['text']}\n"


def test_several_texts_stand_behind_their_numbers(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder(tmp_path / "run", "gpt")
    written = texts(capsys, out, "--prompts", file, "--tokens", 3, "--temperature", 0)
    assert run(["generate", out, "--prompts", str(file), "--tokens", "3", "--temperature", "0"]) == 0
    captured = capsys.readouterr()
    expected = [
        (p + bytes(entry["tokens"])).decode(errors="replace") for p, entry in zip(PROMPTS, written, strict=True)
    ]
    assert captured.out == "".join(f"[{n}]\n{text}\n" for n, text in enumerate(expected, 1))
    assert "12 tokens, " in captured.err


def test_sources_are_written_from(tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder(tmp_path / "run", "transformer")
    model = load(out)
    for words, keywords in ((["--temperature", 0], {"temperature": 0}), (["--beam", 3], {"beam": 3})):
        together = texts(capsys, out, "--sources", file, "--tokens", 9, *words)
        for source, text in zip(PROMPTS, together, strict=True):
            alone = generate(model, None, 9, source=torch.tensor([list(source)]), **keywords)[0].tolist()
            assert text["tokens"] == [token for token in alone if 0 <= token != model.end]
            assert text["source"] == source.decode(errors="replace") and text["ended"] == (model.end in alone)


def test_what_is_wrong_is_said_in_one_line(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, pairs, masked = (folder(tmp_path / name, name) for name in ("gpt", "transformer", "bert"))
    drawer = folder(tmp_path / "drawer", "image_transformer", shape=(1, 4, 4))
    (tmp_path / "empty").touch()
    (tmp_path / "blank").write_text("a\n\nb\n")
    state = str(tmp_path / "state")
    wrong: list[tuple[list[str], str]] = [
        ([out], "there is no text to continue. Give --prompt TEXT, --prompts FILE or --state FILE"),
        ([out, "--prompt", ""], "the prompt is empty"),
        ([out, "--prompt", "a", "--stop", ""], "the stop is empty"),
        ([out, "--prompt", "a", "--prompts", str(file)], "give one of --prompt and --prompts"),
        ([out, "--prompts", str(tmp_path / "none")], "there is no file or folder"),
        ([out, "--prompts", str(tmp_path)], "Is a directory; --prompts must name a file"),
        ([out, "--prompts", str(tmp_path / "empty")], "is empty; write one prompt per line"),
        ([out, "--prompts", str(tmp_path / "blank")], "line 2 of"),
        ([out, "--source", "a"], "this model reads no source"),
        ([out, "--prompt", "a", "--beam", "2", "--temperature", "0.5"], "--beam 2 does not sample; leave out"),
        ([out, "--prompt", "a", "--beam", "2", "--top-k", "5"], "--beam 2 does not sample; leave out"),
        ([out, "--prompt", "a", "--length-penalty", "1"], "--length-penalty has no effect without --beam"),
        ([out, "--prompt", "a", "--beam", "0"], "--beam"),
        ([out, "--prompt", "a", "--beam", "1025"], "--beam"),
        ([out, "--prompt", "a", "--pictures", "4"], "--pictures applies only to a model that generates pictures"),
        ([out, "--prompt", "a", "--label", "0"], "--label applies only to a model that generates pictures"),
        (
            [out, "--prompt", "a", "--out", str(tmp_path / "x.png")],
            "--out applies only to a model that generates pictures",
        ),
        ([drawer, "--prompt", "a"], "this model generates pictures and reads no prompt"),
        ([drawer, "--top-k", "4"], "--top-k applies only to a model that writes text"),
        ([out, "--prompt", "a", "--tokens", str(10**12)], "--tokens"),
        ([out, "--prompt", "a", "--device", "cuda:99"], "there is no device 'cuda:99' on this machine"),
        ([out, "--prompt", "a", "--device", "meta"], "there is no device 'meta' on this machine"),
        ([out, "--prompt", "a", "--state", state], "there is no file or folder"),
        ([pairs, "--prompt", "a"], "this model needs a source text. Give --source TEXT or --sources FILE"),
        ([pairs, "--source", "a", "--state", __file__], "Leave out --state"),
        ([pairs, "--source", "a", "--prompts", str(file)], "got 4 prompts for 1 sources"),
        ([masked, "--prompt", "a"], "this bert fills in masked bytes and cannot continue a text"),
    ]
    for words, message in wrong:
        fails(capsys, ["generate", *words], message)
    monkeypatch.setattr("kinformer.cli.support.memory_limits.free_memory", lambda: 10**6)
    rotary = folder(tmp_path / "long", "gpt", position="rotary")
    many = ["--prompt", "a", "--tokens", "10000000"]
    fails(capsys, ["generate", rotary, *many], "are free. Give fewer tokens")


def test_a_search_tells_how_far_it_is(tmp_path: Path) -> None:
    steps: list[int] = []
    write_all(load(folder(tmp_path / "run", "gpt")), [b"a"], 3, WritingSettings(beam=2), look=steps.append)
    assert steps == [1, 2, 3]


def test_the_best_texts_of_a_search_have_their_scores(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, beam = folder(tmp_path / "run", "gpt"), ["--tokens", "3", "--beam", "4", "--best", "2"]
    together = texts(capsys, out, "--prompts", file, *beam)
    assert [text["prompt"] for text in together] == [p.decode(errors="replace") for p in PROMPTS for _ in range(2)]
    for better, worse in zip(together[::2], together[1::2], strict=True):
        assert better["score"] > worse["score"] and better["tokens"] != worse["tokens"]
        assert better["score"] == pytest.approx(better["log_probability"] / (8 / 6) ** 0.6)
    rows = generate(load(out), [list(p) for p in PROMPTS], 3, beam=4, best=2)[:, max(map(len, PROMPTS)) :]
    assert [text["tokens"] for text in together] == rows.tolist()
    assert run(["generate", out, "--prompts", str(file), *beam]) == 0
    printed = capsys.readouterr().out
    for number, text in enumerate(together):
        assert f"[{number // 2 + 1}.{number % 2 + 1}] score {text['score']:.4f}\n" in printed
    assert run(["generate", out, "--prompt", "a", *beam]) == 0
    scores = [f"[{rank}] score {text['score']:.4f}" for rank, text in enumerate(together[:2], 1)]
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("[")] == scores


def test_prompt_lookup_min_p_and_the_penalty_reach_generate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder(tmp_path / "run", "gpt")
    model, prompt = load(out), "abcabc"
    for words, keywords in (
        (["--temperature", 0, "--prompt-lookup", 4], {"temperature": 0}),
        (["--min-p", 0.9, "--seed", 2], {"min_p": 0.9, "seed": 2}),
        (["--temperature", 0, "--repetition-penalty", 5], {"temperature": 0, "repetition_penalty": 5}),
    ):
        (text,) = texts(capsys, out, "--prompt", prompt, "--tokens", 8, *words)
        assert text["tokens"] == generate(model, list(prompt.encode()), 8, **keywords)[0, 6:].tolist()


def generate_compiled(out: str) -> list[Any]:
    """The exit code and both outputs of `generate --compile`, whose graph runs without generated code."""
    compiled_steps.BACKEND = "eager"
    printed, said = io.StringIO(), io.StringIO()
    with redirect_stdout(printed), redirect_stderr(said):
        code = run(["generate", out, "--prompt", "ab", "--tokens", "12", "--temperature", "0", "--compile"])
    return [code, printed.getvalue(), said.getvalue()]


def test_compile_prints_the_same_text_and_when_it_pays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder(tmp_path / "run", "gpt")
    assert run(["generate", out, "--prompt", "ab", "--tokens", "12", "--temperature", "0"]) == 0
    expected = capsys.readouterr().out
    code, printed, said = process().call(f"{__name__}:{generate_compiled.__name__}", str(out))
    assert (code, printed) == (0, expected)
    assert re.search(
        r"compiled in [0-9.]+ s; a token takes [0-9.]+ ms in place of [0-9.]+; it (pays after|does not)", said
    )
