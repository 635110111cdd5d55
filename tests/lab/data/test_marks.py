"""Byte-order marks: whatever reads text reads the same from a file in UTF-8, with a mark or without, and in UTF-16."""

import codecs
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kinformer.checkpoint.decompress import decode_text, size, text
from kinformer.checkpoint.tokenizer_choice import read_tokenizer as tokenizer_of
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.cli.__main__ import run
from kinformer.core.discover import modules
from kinformer.lab.data.spec import read_spec
from tests.cli.folders import folder

ENCODED: dict[str, Callable[[str], bytes]] = {
    "utf-8 with a mark": lambda text: codecs.BOM_UTF8 + text.encode(),
    "utf-16": lambda text: codecs.BOM_UTF16_LE + text.encode("utf-16-le"),
    "utf-16, big end first": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "utf-32": lambda text: codecs.BOM_UTF32_LE + text.encode("utf-32-le"),
    "utf-32, big end first": lambda text: codecs.BOM_UTF32_BE + text.encode("utf-32-be"),
}
PROSE = "".join(f"Größe {n}, naïve 東京 \N{GRINNING FACE}\n\n" for n in range(60))
COLUMNS = "".join(f"{'up' if n % 2 else 'down'}\tfloor {n}, Größe\n" for n in range(40))
ROWS = "\n".join(json.dumps({"a": f"Größe {n}", "b": f"{'yes' if n % 2 else 'no'}"}) for n in range(40))
NUMBERS = "load,oil\n" + "".join(f"{n},{n * n % 7}\n" for n in range(40))
FILES: dict[str, dict[str, tuple[str, str]]] = {  # by kind of data: options of a spec, the file's name and its text
    "text": {"": ("a.txt", PROSE), ",documents=blank": ("a.txt", PROSE), ",field=a": ("a.jsonl", ROWS)},
    "pairs": {"": ("a.tsv", COLUMNS), ",source=a,target=b": ("a.jsonl", ROWS)},
    "labelled": {"": ("a.tsv", COLUMNS), ",label=b,text=a": ("a.jsonl", ROWS)},
    "multitask": {"": ("a.tsv", COLUMNS)},
    "series": {"": ("a.csv", NUMBERS)},
}
NO_TEXT = {"env", "images", "offline", "sets", "task"}


def test_every_kind_of_data_is_here() -> None:
    assert set(FILES) | NO_TEXT == {name for name, module in modules("data").items() if hasattr(module, "read")}


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize(("kind", "options"), [(kind, option) for kind, files in FILES.items() for option in files])
def test_every_reader_reads_what_the_mark_stands_before(tmp_path: Path, kind: str, options: str, encoding: str) -> None:
    name, words = FILES[kind][options]
    loaded = []
    for place, encode in (("plain", str.encode), ("marked", ENCODED[encoding])):
        (tmp_path / place).mkdir()
        (tmp_path / place / name).write_bytes(encode(words))
        if kind == "multitask":
            (tmp_path / place / "b.tsv").write_bytes(encode(words))
        where = tmp_path / place if kind == "multitask" else tmp_path / place / name
        loaded.append(read_spec(f"{kind}={where}{options}"))
    plain, marked = (_numbers(vars(data)) for data in loaded)
    assert plain == marked and plain["train"]


def _numbers(of: Any) -> Any:
    """Everything but the names of files, as plain lists."""
    if isinstance(of, dict):
        return {name: _numbers(value) for name, value in of.items() if name not in ("name", "split")}
    if isinstance(of, torch.Tensor):
        return of.tolist()
    return [_numbers(element) for element in of] if isinstance(of, tuple | list) else of


@pytest.mark.parametrize("encoding", ENCODED)
def test_a_pipe_is_read_as_a_file_is(tmp_path: Path, encoding: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(ENCODED[encoding](PROSE),))
    writer.start()
    data = read_spec(f"text={tmp_path}/pipe")
    writer.join()
    assert b"".join(bytes(getattr(data, name).tolist()) for name in ("train", "valid", "test")) == PROSE.encode()


@pytest.mark.parametrize("encoding", ENCODED)
@pytest.mark.parametrize("length", [1, 2, 3, 5, 1000])
def test_a_text_is_decoded_however_it_is_cut(tmp_path: Path, encoding: str, length: int) -> None:
    data = ENCODED[encoding](PROSE)
    cut = (data[at : at + length] for at in range(0, len(data), length))
    assert b"".join(decode_text(cut, "it")) == PROSE.encode()
    (tmp_path / "a").write_bytes(data)
    assert size(tmp_path / "a") == len(b"".join(text(tmp_path / "a"))) == len(PROSE.encode())


def test_what_the_mark_does_not_hold_for_is_one_line(tmp_path: Path) -> None:
    for name, data in (("odd", "abc".encode("utf-16")[:-1]), ("half", codecs.BOM_UTF16_LE + b"\x00\xd8a\x00")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=f"{name} is damaged: it has the byte-order mark of UTF-16") as caught:
            read_spec(f"text={tmp_path}/{name}")
        assert "\n" not in str(caught.value)


def test_prompts_a_text_that_is_read_and_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder, state, tokenizer = folder(tmp_path / "run", "gpt"), tmp_path / "state", train_tokenizer([PROSE], 300)
    command = ["generate", str(run_folder), "--prompts", f"{tmp_path}/prompts", "--tokens", "2", "--json"]
    for encode in ENCODED.values():
        (tmp_path / "tokens.json").write_bytes(encode(tokenizer.text))
        assert tokenizer_of(tmp_path / "tokens.json").text == tokenizer.text
        (tmp_path / "prompts").write_bytes(encode("Größe\nThe"))
        (tmp_path / "read").write_bytes(encode("Größe"))
        capsys.readouterr()
        assert run(command) == 0
        assert [entry["prompt"] for entry in json.loads(capsys.readouterr().out)["texts"]] == ["Größe", "The"]
        assert run(["read", str(run_folder), f"{tmp_path}/read", "--save", str(state), "--overwrite", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["bytes"] == report["tokens"] == len("Größe".encode())
