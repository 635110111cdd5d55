"""hf_path: downloads from a small server, the cache without a connection, and everything that is refused."""

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

import kinformer as kf
from kinformer.checkpoint.hub import hf_path
from kinformer.checkpoint.tokenizer_choice import parse_tokenizer
from kinformer.cli.__main__ import run

SHA = "a" * 40
REPOSITORIES = {
    "org/whole": ["config.json", "model.safetensors", "tokenizer.json", "modeling.py", "pytorch_model.bin", "a/b.json"],
    "org/shards": [
        "config.json",
        "model.safetensors.index.json",
        "model-1-of-2.safetensors",
        "model-2-of-2.safetensors",
    ],
    "org/pickled": ["config.json", "pytorch_model.bin"],
    "org/gguf": ["README.md", "tiny.Q8_0.gguf", "tiny.Q4_0.gguf"],
    "org/none": ["config.json"],
}


class Hub(BaseHTTPRequestHandler):
    """A server with the answers of the Hub that a download needs.

    `read` holds the names of the files it sent, and `failing` the names of files that it cannot send.
    """

    read: list[str] = []
    failing: list[str] = []

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = "/".join(path.removeprefix("/api/models").split("/")[1:3])
        files = REPOSITORIES.get(name)
        if "gated" in path:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"})
        if files is None:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        if "/revision/old" in path:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if "/tree/" in path:
            parts = [{"type": "file", "path": file, "size": len(file), "oid": SHA} for file in files]
            return self._send(200, json.dumps(parts).encode())
        if path.startswith("/api/"):
            siblings = [{"rfilename": file} for file in files]
            return self._send(200, json.dumps({"id": name, "sha": SHA, "siblings": siblings}).encode())
        file = path.rpartition("/")[2]
        if file in self.failing:
            return self._send(501, b"")
        self.read.append(file)
        etag = hashlib.sha256(file.encode()).hexdigest()
        self._send(200, file.encode(), {"ETag": f'"{etag}"', "X-Repo-Commit": SHA})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return tmp_path / "cache"


@pytest.fixture
def online(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        f"http://127.0.0.1:{server.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
    )
    Hub.read.clear()
    Hub.failing.clear()
    yield cache
    server.shutdown()
    server.server_close()


@pytest.fixture
def offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    return cache


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_other_texts_are_paths(tmp_path: Path) -> None:
    assert hf_path("runs/gpt") == Path("runs/gpt")
    assert hf_path(f"hf:{tmp_path}") == tmp_path


def test_a_name_of_the_hub_without_hf_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    advice = "; for a model of the Hugging Face Hub write hf:org/name"
    with pytest.raises(FileNotFoundError, match=f"there is no file or folder org/name{advice}$"):
        kf.load("org/name")
    (tmp_path / "org").mkdir()
    with pytest.raises(FileNotFoundError, match="there is no file or folder org/name$"):
        kf.load("org/name")
    with pytest.raises(FileNotFoundError, match="give bytes, bpe:4096, the path of a tokenizer.json or hf:ORG/NAME"):
        parse_tokenizer("~nobody/x")


def test_only_files_that_are_read_are_downloaded_and_the_cache_serves_without_a_connection(
    online: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hf_path("hf:org/whole")
    assert names(folder) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (folder / "config.json").read_text() == "config.json" and folder.is_relative_to(online)
    assert {"pytorch_model.bin", "modeling.py", "b.json"}.isdisjoint(Hub.read)
    assert names(hf_path("hf:org/shards")) == sorted(REPOSITORIES["org/shards"])
    assert hf_path("hf:org/gguf/tiny.Q4_0.gguf").read_text() == "tiny.Q4_0.gguf"
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert hf_path("hf:org/whole") == folder and hf_path("hf:org/gguf/tiny.Q4_0.gguf").is_file()
    with pytest.raises(FileNotFoundError, match="the cache has no complete copy"):
        hf_path("hf:org/gguf/tiny.Q8_0.gguf")


def test_a_tokenizer_needs_no_weights(online: Path) -> None:
    assert names(hf_path("hf:org/whole", weights=False)) == ["config.json", "tokenizer.json"]
    assert "model.safetensors" not in Hub.read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf:org/pickled", "has its weights only in pytorch_model.bin, a pickle"),
        ("hf:org/gguf", "its GGUF files are tiny.Q8_0.gguf, tiny.Q4_0.gguf. Give one of them: hf:org/gguf/tiny.Q8_0"),
        ("hf:org/gguf/tiny.Q8.gguf", "does not exist; the nearest is 'tiny.Q8_0.gguf'; its GGUF files are"),
        ("hf:org/none", "cannot load hf:org/none: expected model.safetensors or model.safetensors.index.json"),
        ("hf:org/lost", "does not exist, or is private"),
        ("hf:org/whole@old", "org/whole has no revision 'old'"),
        ("hf:org/gated", "open only to users who accepted its terms: accept them at https://huggingface.co/org/gated"),
    ],
)
def test_repositories_that_cannot_be_read_are_refused_before_a_download(online: Path, text: str, message: str) -> None:
    with pytest.raises(OSError) as error:
        hf_path(text)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not Hub.read


@pytest.mark.parametrize(
    "text",
    [
        *("hf:", "hf:name", "hf:a/b/c", "hf:a/../b", "hf:a/b@", "hf:a b/c", "hf:/no/such"),
        *("hf:./x", "hf:a--b/c", "hf:-a/b", "hf:a/b.git", "hf:~nobody/x"),
    ],
)
def test_malformed_names(text: str) -> None:
    with pytest.raises(
        ValueError, match="wrong name of a model of the Hugging Face Hub: got 'hf:.*expected hf:ORG/NAME"
    ):
        hf_path(text)


@pytest.mark.parametrize("fault", ["endpoint", "socket", "variable"])
def test_without_a_connection_and_a_copy_the_refusal_is_quick(
    fault: str, offline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def blocked(*args: object, **keywords: object) -> None:
        raise OSError("network is blocked")

    if fault == "socket":
        monkeypatch.setattr(socket, "create_connection", blocked)
    if fault == "variable":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    timeouts: list[Any] = []
    model_info = huggingface_hub.HfApi.model_info

    def ask(api: Any, *args: Any, timeout: Any, **keywords: Any) -> Any:
        timeouts.append(timeout)
        return model_info(api, *args, timeout=timeout, **keywords)

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", ask)
    assert run(["generate", "hf:org/whole", "--prompt", "a"]) == 2
    ((connect, *_),) = timeouts
    assert connect < 2, "seconds, after a single try"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kinformer: cannot download hf:org/whole: ") and "the cache has no complete copy" in line
    assert "`hf download org/whole` on another machine and give the folder" in line
    assert ("HF_HUB_OFFLINE is set" in line) == (fault == "variable")


@pytest.mark.parametrize("failing", ["tokenizer.json", "model.safetensors"])
def test_a_failed_download_gives_no_partial_copy(failing: str, online: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Hub.failing.append(failing)
    with pytest.raises(FileNotFoundError) as error:
        hf_path("hf:org/whole")
    message = str(error.value)
    assert "501" in message and "Try again, or run `hf download org/whole` on another" in message
    assert "Connect" not in message and "cache" not in message and "\n" not in message
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FileNotFoundError, match=r"the cache has no complete copy\. Connect, or run"):
        hf_path("hf:org/whole")


def test_a_repository_without_a_tokenizer(online: Path) -> None:
    with pytest.raises(FileNotFoundError, match="cannot load the tokenizer of hf:org/none: expected tokenizer.json or"):
        parse_tokenizer("hf:org/none")


def snapshot(cache: Path) -> Path:
    """The folder of the main revision of org/name in the cache, as the package lays it out."""
    folder = cache / "models--org--name" / "snapshots" / SHA
    folder.mkdir(parents=True)
    (folder.parents[1] / "refs").mkdir()
    (folder.parents[1] / "refs" / "main").write_text(SHA)
    return folder


def test_a_copy_made_by_hand(offline: Path) -> None:
    folder = snapshot(offline)
    (folder / "config.json").write_text("{}")
    for read in (hf_path, parse_tokenizer, lambda text: hf_path(text, weights=False)):
        with pytest.raises(FileNotFoundError, match="cannot download hf:org/name: .*the cache has no complete copy"):
            read("hf:org/name")
    (folder / "vocab.txt").write_text("a")
    assert hf_path("hf:org/name", weights=False) == folder
    (folder / "model.safetensors").write_text("")
    assert hf_path("hf:org/name") == folder == hf_path(f"hf:org/name@{SHA}")
    with pytest.raises(FileNotFoundError, match="run `hf download org/name --revision other` on another machine"):
        hf_path("hf:org/name@other")


def test_a_copy_needs_all_shards(offline: Path) -> None:
    folder = snapshot(offline)
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shards[0], "b": shards[1]}}))
    for name in ("config.json", *shards):
        with pytest.raises(FileNotFoundError, match="the cache has no complete copy"):
            hf_path("hf:org/name")
        (folder / name).write_text("{}")
    assert hf_path("hf:org/name") == folder
