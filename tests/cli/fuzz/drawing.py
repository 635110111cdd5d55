"""What lines of words are drawn from: words, numbers, files, data, members, right and wrong."""

from pathlib import Path
from random import Random

from kinformer.core.discover import members

ODD = (
    "",
    " ",
    "-",
    "--",
    "x",
    "=",
    "d=",
    "=1",
    "é",
    "a\nb",
    "[b]",
    "(",
    "none",
    "True",
    "\udcff",
    "~",
    "%s",
    "{}",
    "*",
)
NUMBERS = ("1", "0", "-1", "2", "3", "1.5", "1e3", "nan", "inf", "-inf", "1000000", "99999999999999999999", "1_0", "٣")
SMALL = ("1", "2", "0", "-1", "1.5", "nan", "99999999999999999999", "x", "")
FILES = (
    "text",
    "pairs.tsv",
    "labelled.tsv",
    "rows.jsonl",
    "empty",
    "binary",
    "short",
    "lines",
    "texts",
    "nothing",
    "gpt",
    "lanes",
    "state",
    "bert",
    "pairs",
    "words",
    "gpt.state",
    "words.state",
    "mine.py",
    "broken.py",
    "fails.py",
    "gpt/model.safetensors",
    "gpt/config.json",
    "words/tokenizer.json",
    "gpt/best",
    "gpt/trainer",
    "text/below",
    "list.json",
    "object.json",
    "calm",
    "tuned",
    "informer",
    "acts",
    "tasks",
    "draws",
    "store",
    "series.csv",
    "episodes.npz",
    "pictures.npz",
    "subjects",
    "tuned/knn-lm.json",
    "calm/exits.json",
    "store/store.json",
)
WRITERS = ("gpt", "lanes", "state", "pairs", "words", "gpt/best", "calm", "tuned")
MODELS = (*WRITERS, "bert", "informer", "acts", "draws", "tasks", "plays")
KEYWORDS = ("d", "depth", "heads", "vocab", "dropout", "memory", "window", "pattern", "position", "mlp", "chunk", "x")
VALUES = (
    *NUMBERS,
    *ODD,
    "none",
    "Causal()",
    "Band(1)",
    "Causal() & (Band(2)",
    "1,2",
    "(1,)",
    "rotary",
    "alibi",
    "Full()",
)
TASKS = (
    "copy",
    "reverse",
    "parity",
    "recall,pairs=2",
    "sorting",
    "addition",
    "nothing",
    "copy,size=-1",
    "copy,width=0",
)
LAWS = ("runs", "peek", "chunk", "padding", "nothing")
SHOWN = (
    "band",
    "Causal()",
    "Causal() & Band(4)",
    "gpt",
    "attend",
    "sparse",
    "alibi",
    "nothing",
    "Band(",
    "copy",
    "relu",
)

SPECS = {  # data by its kind, behind the folder that holds it
    "text": ("text", "text", "texts", "rows.jsonl", "lines"),
    "pairs": ("pairs.tsv",),
    "labelled": ("labelled.tsv",),
    "series": ("series.csv", "series.csv", "lines"),
    "offline": ("episodes.npz", "episodes.npz", "pictures.npz"),
    "images": ("pictures.npz", "pictures.npz", "episodes.npz"),
    "multitask": ("subjects", "subjects", "texts"),
    "sets": ("episodes.npz",),
}
RATHER = ("text",) * 12 + ("task", "pairs") * 2 + (*SPECS, "env", "txt")
ENVS = (
    "t_maze,corridor=2",
    "t_maze,corridor=2",
    "CartPole-v1",
    "t_maze,corridor=x",
    "t_maze,x=1",
    "NoSuch-v9",
    "t",
    "/",
)
SETS = ("maximum", "maximum,most=4", "unique,most=x", "nothing")
MORE = (
    "documents=lines",
    "documents=blank",
    "documents=joined",
    "field=text",
    "field=n",
    "field=no",
    "valid=x",
    "source=source",
    "target=text",
    "x=y",
    "tokenizer=bytes",
    "documents=",
    "label=label",
    "reward=end",
    "reward=x",
    "power=0.5",
    "power=nan",
    "answer=count",
    "tokenizer=bpe:260",
    "tokenizer=bpe:x",
)


class Drawn:
    """What a line is made of; paths are in `root`, and what is written goes beside it, or to where something is."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.rng = root, Random(seed)

    def choose(self, *choices: str) -> str:
        return self.rng.choice(choices)

    def mostly(self, right: str, *alternatives: str) -> str:
        return right if not alternatives or self.rng.random() < 0.8 else self.rng.choice(alternatives)

    def path(self, *names: str) -> str:
        """A file or folder that is mostly of the right kind."""
        return str(self.root / self.choose(*(FILES if self.rng.random() < 0.05 else names)))

    def sample_options(self, options: dict[str, tuple[str, ...] | None], share: float = 0.3) -> list[str]:
        """Some of these options; None for a flag."""
        words = []
        for name, values in options.items():
            if self.rng.random() < share:
                words += [name] if values is None else [name, self.mostly(*values)]
        return words

    def new(self) -> str:
        """A place to write to: nearly always a new one."""
        return (
            self.path(*FILES) if self.rng.random() < 0.06 else self.choose("out", "deep/er/out", "o u t", "ö", "./out")
        )

    def data(self, *kinds: str) -> str:
        """Data, mostly of a kind that is there; of one of these kinds, if any is named."""
        kind = self.choose(*(kinds if kinds and self.rng.random() < 0.9 else RATHER))
        if kind == "task":
            return f"task={self.choose(*TASKS)}"
        if kind == "env":
            return f"env={self.choose(*ENVS)}"
        if kind == "sets" and self.rng.random() < 0.7:
            return f"sets={self.choose(*SETS)}"
        spec = f"{kind}={self.path(*SPECS.get(kind, ('text', 'binary')))}"
        choices_of_options = (*MORE, f"tokenizer={self.path('words', 'words/tokenizer.json')}")
        return spec + "".join(f",{self.choose(*choices_of_options)}" for _ in range(self.rng.choice((0, 0, 0, 0, 1))))

    def keywords(self, share: float = 0.3) -> list[str]:
        """Keywords of a small member, seldom others."""
        words = ["d=8", "depth=1", "heads=2"]
        if self.rng.random() < share:
            words.append(f"{self.choose(*KEYWORDS)}={self.choose(*VALUES)}")
        return words

    def member(self) -> str:
        few = ("gpt", "gpt", "transformer_xl", "linear_transformer", "bert", "transformer")
        if self.rng.random() < 0.1:
            return self.choose(
                f"{self.root}/mine.py:mine",
                f"{self.root}/mine.py:mine",
                f"{self.root}/broken.py:x",
                f"{self.root}/fails.py:x",
                "gtp",
                "",
            )
        return self.choose(*(few if self.rng.random() < 0.7 else tuple(members())))
