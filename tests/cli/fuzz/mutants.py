"""Files of a model, a training, a state and a cache, spoilt by a seed, and a command that reads them."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.cli.fuzz.world import OTHERS, TRAINED, remove

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    2,
    7,
    10**6,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    0.5,
    "",
    "x",
    "é",
    "1",
    "bytes",
    "tokenizer.json",
    "../text",
    "/dev/zero",
    [],
    [1],
    [[]],
    {},
    {"a": 1},
    "x" * 5000,
)
DEEP = b"[" * 200_000


class Mutants:
    """Draws what is spoilt and what is asked; `place` is a folder of its own, that is left as it was spoilt."""

    def __init__(self, root: Path, place: Path, cache: Path, seed: int) -> None:
        self.root, self.place, self.cache, self.rng = root, place, cache, Random(seed)

    def draw(self) -> tuple[str, list[str]]:
        """What was done to which file, and the words of a command."""
        remove(self.place)
        self.place.mkdir()
        sorts = {"model": 5, "training": 5, "state": 2, "cache": 1, "other": 2, "early": 2, "beside": 3, "numbers": 2}
        sort = self.rng.choices(list(sorts), list(sorts.values()))[0]
        spoil: Callable[[], tuple[list[Path], list[str]]] = getattr(self, f"_{sort}")
        files, words = spoil()
        done = []
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            file = self.rng.choice(files)
            done.append(f"{file.name}: {self._spoilt(file)}")
        return "; ".join(done), words

    def _copy(self, name: str) -> Path:
        at = self.place / name
        shutil.copytree(self.root / name, at)
        return at

    def _model(self) -> tuple[list[Path], list[str]]:
        name = self.rng.choice([*TRAINED])
        at = self._copy(name)
        files = [at / "config.json", at / "model.safetensors"]
        files += [at / "tokenizer.json"] * 2 if name == "words" else []
        return files, self.rng.choice(self._askers(name, at))

    def _askers(self, name: str, at: Path) -> list[list[str]]:
        model = TRAINED[name]
        data, start = model.data.format(self.root), model.words(self.root, "--out", "out", "--from", str(at))
        commands = [
            ["evaluate", str(at), "--data", data, "--bytes", "100"],
            ["evaluate", str(at), "--data", data, "--json"],
            start,
        ]
        if name == "bert":
            return [*commands, ["fill", str(at), "--text", "the c_t"], ["fill", str(at), "--text", "_", "--json"]]
        write = ["generate", str(at), "--tokens", "3", "--source" if name == "pairs" else "--prompt", "The cat"]
        read = ["read", str(at), str(self.root / "short"), "--save", "kept"]
        return [*commands, write, [*write, "--json"], [*write, "--beam", "2"], *([] if name == "pairs" else [read])]

    def _training(self) -> tuple[list[Path], list[str]]:
        name = self.rng.choice([*TRAINED])
        at = self._copy(name)
        files = [path for path in at.rglob("*") if path.is_file()]
        files += [path for path in files if "trainer" in path.parts or path.name == "metrics.jsonl"] * 3
        files.append(at / "trainer")
        words = TRAINED[name].words(self.root, "--out", str(at), "--resume")
        words[words.index("--steps") + 1] = self.rng.choice(("1", "2", "2"))
        return sorted(files), words

    def _state(self) -> tuple[list[Path], list[str]]:
        name = self.rng.choice(("gpt", "words"))
        at = self.place / "kept.state"
        shutil.copy(self.root / f"{name}.state", at)
        words = ["generate", str(self.root / name), "--state", str(at), "--tokens", "3"]
        return [at], words + self.rng.choice(([], ["--prompt", "a"], ["--json"]))

    def _cache(self) -> tuple[list[Path], list[str]]:
        files = [path for path in self.cache.rglob("*")]
        return sorted(files), TRAINED["words"].words(self.root, "--out", "out")

    def _other(self) -> tuple[list[Path], list[str]]:
        """A model of what is no text."""
        name = self.rng.choice([*OTHERS])
        at, data = self._copy(name), OTHERS[name].data.format(self.root)
        ask = {
            "informer": ["forecast", str(at), "--data", data, "--out", self.rng.choice(("o.csv", "o.png"))],
            "acts": ["play", str(at), "--env", "CartPole-v1", "--episodes", "1"],
            "plays": ["play", str(at), "--env", "t_maze,corridor=2", "--episodes", "1"],
            "draws": ["generate", str(at), "--out", "o.png", "--pictures", "1"],
        }.get(name, ["evaluate", str(at), "--data", data, "--json"])
        start = OTHERS[name].words(self.root, "--out", "out", "--from", str(at))
        evaluate = ["evaluate", str(at), "--data", data, "--bytes", "100"]
        return [at / "config.json", at / "model.safetensors"], self.rng.choice([ask, ask, start, evaluate])

    def _early(self) -> tuple[list[Path], list[str]]:
        """What calibration has noted."""
        at = self._copy("calm")
        words = ["generate", str(at), "--prompt", "The cat", "--tokens", "2"]
        return [at / "exits.json"], words + self.rng.choice(([], ["--json"], ["--layers", "o.png"]))

    def _beside(self) -> tuple[list[Path], list[str]]:
        """A datastore, and what was noted of it beside a model."""
        at, store = self._copy("tuned"), self._copy("store")
        files = [path for path in store.iterdir() if path.is_file()]
        if self.rng.random() < 0.3:
            done = ["generate", str(at), "--prompt", "The cat", "--tokens", "2", "--knn"]
            return [at / "knn-lm.json"], done
        data = ["--data", f"text={self.root}/text", "--bytes", "20"]
        return sorted(files), self.rng.choice(
            [
                ["datastore", "info", str(store), "--json"],
                ["datastore", "search", str(store), "--prompt", "The cat", "--k", "2"],
                ["datastore", "search", str(store), "--prompt", "The cat", "--exact", "--json"],
                ["generate", str(at), "--prompt", "The cat", "--tokens", "2", "--datastore", str(store)],
                ["evaluate", str(at), *data, "--datastore", str(store)],
                ["knn-lm", str(self.root / "gpt"), *data, "--datastore", str(store), "--k", "2"],
            ]
        )

    def _numbers(self) -> tuple[list[Path], list[str]]:
        """Data of numbers."""
        name, model = self.rng.choice(
            (("series.csv", "informer"), ("episodes.npz", "acts"), ("pictures.npz", "draws"), ("subjects", "tasks"))
        )
        at = self.place / name
        (shutil.copytree if name == "subjects" else shutil.copy)(self.root / name, at)
        files, training = sorted(at.iterdir()) if at.is_dir() else [at], OTHERS[model]
        data = training.data.format(self.place)
        learn = training._replace(data=data).words(self.root, "--out", "out")
        ask = ["evaluate", str(self.root / model), "--data", data, "--bytes", "100"]
        ahead = ["forecast", str(self.root / model), "--data", data, "--out", "o.csv"]
        return files, self.rng.choice([learn, learn, ask, ahead if name == "series.csv" else ask])

    # How a file is spoilt ---------------------------------------------------------------------------------------------

    def _spoilt(self, file: Path) -> str:
        if not file.exists():
            return "gone"
        if file.is_dir():
            damage = self.rng.choice(("empty", "gone", "file"))
            remove(file)
            if damage != "gone":
                file.mkdir() if damage == "empty" else file.write_bytes(b"x")
            return damage
        damage = self.rng.choice(
            ("cut", "grow", "flip", "flip", "bytes", "alike", "tree", "tree", "tree", "place", "nan")
        )
        return getattr(self, f"_{damage}")(file)

    def _cut(self, file: Path) -> str:
        data = file.read_bytes()
        size = self.rng.choice((0, self.rng.randrange(len(data) + 1), max(len(data) - 1, 0)))
        file.write_bytes(data[:size])
        return f"cut to {size:,} bytes"

    def _grow(self, file: Path) -> str:
        file.write_bytes(file.read_bytes() + self.rng.choice((b"\n", b"\0" * 9, b"{}", b"x" * 1000)))
        return "longer"

    def _flip(self, file: Path) -> str:
        data = bytearray(file.read_bytes())
        for _ in range(self.rng.choice((1, 1, 2, 9))):
            if data:
                data[self.rng.choice((0, self.rng.randrange(len(data)), self.rng.randrange(min(len(data), 300))))] ^= (
                    1 << self.rng.randrange(8)
                )
        file.write_bytes(data)
        return "bits flipped"

    def _bytes(self, file: Path) -> str:
        data = self.rng.choice(
            (
                b"null",
                b"[]",
                b"{}",
                b"\xff\xfe",
                b"\0" * 64,
                b"\xff" * 64,
                DEEP,
                b'{"a":' * 100_000,
                self.rng.randbytes(99),
            )
        )
        file.write_bytes(data)
        return f"{data[:9]!r} alone"

    def _nan(self, file: Path) -> str:
        """Numbers of weights that are none, or large beyond all use; elsewhere a word of a text."""
        data = file.read_bytes()
        if file.suffix not in (".safetensors", ".state") or len(data) < 8:
            places = [match.span() for match in re.finditer(rb"[0-9.]+", data[:100_000])] or [(0, 0)]
            first, last = self.rng.choice(places)
            file.write_bytes(data[:first] + self.rng.choice((b"nan", b"inf", b"1e300", b"", b"x")) + data[last:])
            return "another number"
        first = 8 + int.from_bytes(data[:8], "little")
        count = max((len(data) - first) // 4, 0)
        number = self.rng.choice((float("nan"), float("inf"), 1e30, -1e38))
        offset = 4 * self.rng.randrange(count) if count else 0
        spoilt = self.rng.choice(
            (slice(first, first + 4 * count), slice(first + offset, first + offset + 4 * min(count, 1)))
        )
        size = (spoilt.stop - spoilt.start) // 4
        file.write_bytes(data[: spoilt.start] + struct.pack("<f", number) * size + data[spoilt.stop :])
        return f"{size:,} numbers {number}"

    def _alike(self, file: Path) -> str:
        alike = [path for path in self.root.rglob(f"*{file.suffix}") if path.is_file()]
        other = self.rng.choice(sorted(alike) or [self.root / "text"])
        shutil.copy(other, file)
        return f"that of {other.relative_to(self.root)}"

    def _place(self, file: Path) -> str:
        kind = self.rng.choice(("gone", "folder", "loop", "dangling"))
        file.unlink()
        if kind == "folder":
            file.mkdir()
        elif kind == "loop":
            file.symlink_to(file)
        elif kind == "dangling":
            file.symlink_to("nowhere")
        return kind

    def _tree(self, file: Path) -> str:
        """With something else in its JSON, or in the header of its tensors."""
        data, body = file.read_bytes(), b""
        if file.suffix in (".safetensors", ".state"):
            size = int.from_bytes(data[:8], "little")
            data, body = data[8 : 8 + size], data[8 + size :]
        lines = data.splitlines() if file.suffix == ".jsonl" else [data]
        at = self.rng.randrange(len(lines)) if lines else 0
        try:
            tree = json.loads(lines[at])
            inner = tree.get("__metadata__", {}).get("kinformer.state") if isinstance(tree, dict) else None
            if inner is not None and self.rng.random() < 0.7:
                state = json.loads(inner)
                damage = self._within(state)
                tree["__metadata__"]["kinformer.state"] = json.dumps(state)
            else:
                damage = self._within(tree)
        except (ValueError, IndexError, AttributeError, RecursionError):
            return self._cut(file)
        lines[at] = json.dumps(tree).encode()
        data = b"\n".join(lines) + (b"\n" if file.suffix == ".jsonl" else b"")
        file.write_bytes(
            (len(data).to_bytes(8, "little") if body or file.suffix in (".safetensors", ".state") else b"")
            + data
            + body
        )
        return damage

    def _within(self, tree: Any) -> str:
        """A key dropped, named otherwise, or of another value, somewhere in a tree."""
        places: list[tuple[Any, Any]] = []

        def gather(part: Any) -> None:
            for key in part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
                places.append((part, key))
                gather(part[key])

        gather(tree)
        if not places:
            return "as it was"
        part, key = self.rng.choice(places[: self.rng.choice((9, len(places)))])
        change = self.rng.choice(("drop", "rename", "value", "value", "value", "near"))
        if change == "drop":
            del part[key]
        elif change == "rename" and isinstance(part, dict):
            part[self.rng.choice(("x", "", f"{key}x"))] = part.pop(key)
        elif change == "near" and isinstance(part[key], int | float) and not isinstance(part[key], bool):
            part[key] = part[key] + self.rng.choice((1, -1, 0.5, 2**31, -(2**63)))
        else:
            part[key] = self.rng.choice(ODD)
        return f"{change} {str(key)[:20]!r}"
