"""A folder of things that were there before, and what is seen when a command is run beside them."""

import hashlib
import os
import shutil
import stat
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import numpy
import torch

from kinformer.cli.__main__ import run

TEXT = b"".join(b"The cat no. %d sat on the m\xc3\xa4t,\r\nand it slept.\n\n" % n for n in range(80))
PAIRS = b"".join(b"cat %d\tchat %d\n" % (n, n) for n in range(120))
LABELLED = b"".join(b"%s\ttext no. %d\n" % ((b"good", b"bad")[n % 2], n) for n in range(120))
ROWS = b"".join(b'{"text": "row %d", "source": "a", "n": %d}\n' % (n, n) for n in range(120))
OWN = '''"""Of one's own."""

from kinformer import member
from kinformer.members.gpt import gpt
from kinformer.nn.patterns.band import Band


@member
def mine(d: int = 8):
    """A small one."""
    return gpt(d=d, depth=1, heads=2)


EXAMPLES = (Band(2, 0),)
'''
SIZE = ("d=8", "depth=1", "heads=2")
BRIEF = ("--steps", "1", "--batch", "2")
UNSIZED = ("env", "images", "offline", "series", "sets", "task")  # whose rows are as long as the data or the model says


class Trained(NamedTuple):
    """A training: its member, of which sizes, and its data, {} being where that lies."""

    member: str
    data: str
    sizes: tuple[str, ...] = SIZE

    def words(self, root: Path, *options: str) -> list[str]:
        """The command."""
        rows = [] if self.data.partition("=")[0] in UNSIZED else ["--length", "8"]
        return ["train", self.member, *self.sizes, "--data", self.data.format(root), *options, *BRIEF, *rows]


TRAINED = {
    "gpt": Trained("gpt", "text={}/text"),
    "lanes": Trained("transformer_xl", "text={}/text"),
    "state": Trained("linear_transformer", "text={}/text"),
    "bert": Trained("bert", "text={}/text"),
    "pairs": Trained("transformer", "pairs={}/pairs.tsv"),
    "words": Trained("gpt", "text={}/text,tokenizer=bpe:300"),
}
OTHERS = {  # what is no text, and what commands of its own are for
    "calm": Trained("calm", "text={}/text", ("d=8", "depth=2", "heads=2", "threshold=1.0", "temperature=none")),
    "informer": Trained("informer", "series={}/series.csv", (*SIZE, "context=8", "label=4", "horizon=3")),
    "acts": Trained("decision_transformer", "offline={}/episodes.npz", (*SIZE, "context=3")),
    "plays": Trained("gpt", "env=t_maze,corridor=2", (*SIZE, "length=64")),
    "tasks": Trained("camtl", "multitask={}/subjects", (*SIZE, "blocks=2")),
    "draws": Trained("image_transformer", "images={}/pictures.npz", (*SIZE, "block=8", "memory=4")),
}
BESIDE = ("knn-lm.json", "knn-lm.png", "exits.json", "exits.png")  # what knn-lm and calibrate put beside a model


class Seen(NamedTuple):
    """What a command did: its exit code, or what came out of it, and what it wrote."""

    code: int
    out: str
    err: str
    raised: BaseException | None = None


def make(root: Path) -> None:
    """Files of every kind, and a trained model of each sort."""
    root.mkdir()
    files = {"text": TEXT, "pairs.tsv": PAIRS, "labelled.tsv": LABELLED, "rows.jsonl": ROWS, "mine.py": OWN.encode()}
    files |= {"empty": b"", "broken.py": b"def (", "binary": bytes(range(256)) * 8, "lines": b"one\ntwo words\n\xff\n"}
    files |= {"short": b"ab", "fails.py": b"raise RuntimeError('no')\n", "list.json": b"[1, 2]", "object.json": b"{}"}
    for name, data in files.items():
        (root / name).write_bytes(data)
    (root / "texts").mkdir()
    for n in range(3):
        (root / "texts" / f"{n}.txt").write_bytes(TEXT)
    _make_numbers(root)
    for name, training in {**TRAINED, **OTHERS}.items():
        done(*training.words(root, "--out", str(root / name)))
    for name in ("gpt", "words"):
        done("read", str(root / name), str(root / "short"), "--save", str(root / f"{name}.state"))
    shutil.copytree(root / "gpt", root / "tuned")
    data = ["--data", f"text={root}/text"]
    done("datastore", "build", str(root / "gpt"), *data, "--out", str(root / "store"), "--length", "16")
    done("knn-lm", str(root / "tuned"), "--datastore", str(root / "store"), *data, "--bytes", "20", "--k", "2")
    proven = ["--delta", "0.9", "--epsilon", "0.5", "--tokens", "2", "--thresholds", "2", "--length", "4"]
    done("calibrate", str(root / "calm"), *data, *proven)


def _make_numbers(root: Path) -> None:
    """Series, episodes, pictures, and texts of two tasks."""
    rng = numpy.random.default_rng(0)
    lines = [f"2020-03-{1 + n // 24:02} {n % 24:02}:00,{rng.normal():.3f},{n}" for n in range(120)]
    (root / "series.csv").write_text("\n".join(["at,a,b", *lines, ""]))
    steps, size = 5, 8
    numpy.savez(
        root / "episodes.npz",
        obs=rng.normal(size=(steps * size, 4)).astype("float32"),
        actions=rng.integers(0, 3, steps * size),
        rewards=rng.normal(size=steps * size).astype("float32"),
        episode_starts=numpy.arange(steps * size) % steps == 0,
    )
    pixels, labels = rng.integers(0, 256, (24, 4, 4)).astype("uint8"), rng.integers(0, 2, 24)
    numpy.savez(root / "pictures.npz", x_train=pixels, y_train=labels, x_test=pixels[:4], y_test=labels[:4])
    (root / "subjects").mkdir()
    for name in ("mood", "kind"):
        (root / "subjects" / f"{name}.tsv").write_bytes(LABELLED)


def done(*words: str) -> None:
    """Run a command that must do what it says."""
    outcome = see(list(words))
    assert outcome.code == 0, (words, outcome)


def see(words: list[str]) -> Seen:
    """Run a command in this process, and keep all that is seen of it."""
    out, err = StringIO(), StringIO()
    threads = torch.get_num_threads()
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        try:
            code, raised = run(list(words)), None
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            code, raised = -1, error
    torch.set_num_threads(threads)
    return Seen(code, out.getvalue(), err.getvalue(), raised)


def content(path: Path) -> str:
    """A hash of what a file holds."""
    if not path.exists():
        return "nothing"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"


def marks(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of every file that is there, and of every folder, what the system changes with whatever is written to it."""
    by_path = dict[str, tuple[int, ...]]()
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            status = os.lstat(path := os.path.join(at, name))
            alike = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            by_path[os.path.relpath(path, folder)] = () if stat.S_ISDIR(status.st_mode) else alike
    return dict(sorted(by_path.items()))


class Watched:
    """A folder whose files must not change; what is new in it is taken away. Only what was written to is read again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.marks = folder, marks(folder)
        self.before = {name: content(folder / name) for name in self.marks}

    def harmed(self) -> list[str]:
        """What is gone or is another."""
        now = marks(self.folder)
        written = [name for name, mark in self.marks.items() if now.get(name) != mark]
        return [name for name in written if content(self.folder / name) != self.before[name]]

    def added(self) -> list[str]:
        """What is new."""
        return [name for name in marks(self.folder) if name not in self.before]

    def tidy(self) -> None:
        """Take away what is new."""
        for name in self.added():
            remove(self.folder / name)

    def allowed(self, names: list[str], pristine: Path) -> None:
        """Bring back what a command may change, from where all is as it was."""
        for name in names:
            remove(self.folder / name)
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            if (pristine / name).is_dir():
                (self.folder / name).mkdir(exist_ok=True)
            else:
                shutil.copy2(pristine / name, self.folder / name)


def remove(path: Path) -> None:
    """Take away a file or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def value(words: list[str], name: str, otherwise: str = "") -> str:
    """What an option says."""
    for n, word in enumerate(words):
        if word == name and n + 1 < len(words):
            return words[n + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return otherwise
