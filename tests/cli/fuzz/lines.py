"""Command lines, right and wrong, drawn by a seed."""

from collections.abc import Callable
from pathlib import Path
from random import Random

from kinformer.discover import kinds, members

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
    "text", "pairs.tsv", "labelled.tsv", "rows.jsonl", "empty", "binary", "short", "lines", "texts", "nothing", "gpt",
    "lanes", "state", "bert", "pairs", "words", "gpt.state", "words.state", "mine.py", "broken.py", "fails.py",
    "gpt/model.safetensors", "gpt/config.json", "words/tokenizer.json", "gpt/best", "gpt/trainer", "text/below",
    "list.json", "object.json",
)  # fmt: skip
MODELS = ("gpt", "lanes", "state", "bert", "pairs", "words", "gpt/best")
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


class Lines:
    """Lines of words; every path is in `there`, and what is written goes beside it, or to where something is."""

    def __init__(self, there: Path, seed: int) -> None:
        self.there, self.chance = there, Random(seed)
        self.commands: dict[str, Callable[[], list[str]]] = {
            "list": self.listing, "show": self.show, "train": self.train, "generate": self.generate, "read": self.read,
            "evaluate": self.evaluate, "fill": self.fill, "compare": self.compare, "cost": self.cost,
            "check": self.check, "advise": self.advise,
        }  # fmt: skip

    def draw(self) -> list[str]:
        """A line that is right or nearly so, and then, more often than not, is spoilt."""
        name = self.chance.choices(list(self.commands), (1, 2, 5, 6, 4, 5, 3, 2, 3, 1, 1))[0]
        words = [name, *self.commands[name]()]
        for _ in range(self.chance.choice((0, 0, 0, 0, 1, 1, 2))):
            words = self.spoilt(words)
        return words

    def one(self, *given: str) -> str:
        return self.chance.choice(given)

    def mostly(self, right: str, *others: str) -> str:
        return right if not others or self.chance.random() < 0.8 else self.chance.choice(others)

    def path(self, *given: str) -> str:
        """A file or folder that is mostly of the right kind."""
        return str(self.there / self.one(*(FILES if self.chance.random() < 0.05 else given)))

    def some(self, options: dict[str, tuple[str, ...] | None], share: float = 0.3) -> list[str]:
        """Some of these options; None for a flag."""
        words = []
        for name, values in options.items():
            if self.chance.random() < share:
                words += [name] if values is None else [name, self.mostly(*values)]
        return words

    def new(self) -> str:
        """A place to write to: nearly always a new one."""
        return (
            self.path(*FILES) if self.chance.random() < 0.06 else self.one("out", "deep/er/out", "o u t", "ö", "./out")
        )

    def data(self) -> str:
        """Data, mostly of a kind that is there."""
        kind = self.one(*["text"] * 12, "task", "task", "pairs", "pairs", "labelled", "images", "series", "txt")
        if kind == "task":
            return f"task={self.one(*TASKS)}"
        where = {
            "text": ("text", "text", "texts", "rows.jsonl", "lines"),
            "pairs": ("pairs.tsv",),
            "labelled": ("labelled.tsv",),
        }
        spec = f"{kind}={self.path(*where.get(kind, ('text', 'binary')))}"
        more = (
            "tokenizer=bpe:260", "tokenizer=bpe:x", f"tokenizer={self.path('words', 'words/tokenizer.json')}",
            "documents=lines", "documents=blank", "documents=joined", "field=text", "field=n", "field=no", "valid=x",
            "source=source", "target=text", "x=y", "tokenizer=bytes", "documents=",
        )  # fmt: skip
        return spec + "".join(f",{self.one(*more)}" for _ in range(self.chance.choice((0, 0, 0, 0, 1))))

    def keywords(self, share: float = 0.3) -> list[str]:
        """Keywords of a small member, seldom others."""
        words = ["d=8", "depth=1", "heads=2"]
        if self.chance.random() < share:
            words.append(f"{self.one(*KEYWORDS)}={self.one(*VALUES)}")
        return words

    def member(self) -> str:
        few = ("gpt", "gpt", "transformer_xl", "linear_transformer", "bert", "transformer")
        if self.chance.random() < 0.1:
            return self.one(
                f"{self.there}/mine.py:mine",
                f"{self.there}/mine.py:mine",
                f"{self.there}/broken.py:x",
                f"{self.there}/fails.py:x",
                "gtp",
                "",
            )
        return self.one(*(few if self.chance.random() < 0.7 else tuple(members())))

    def listing(self) -> list[str]:
        return [self.one(*kinds())] if self.chance.random() < 0.7 else []

    def show(self) -> list[str]:
        out = self.some({"--out": (self.new() + self.one(".png", ".svg", ".x", ""),)}, 0.1)
        return [self.one(*SHOWN, self.one(*members())), *self.some({"--length": ("1", "7", *SMALL)}), *out]

    def train(self) -> list[str]:
        words = [self.member(), *self.keywords(), "--data", self.data(), "--out", self.new()]
        words += self.one("--steps 1", "--steps 2", "--steps 1", "--minutes 0.0001").split()
        words += ["--batch", self.mostly("2", "1", *NUMBERS), "--length", self.mostly("8", "16", "1", *NUMBERS)]
        return words + self.some({
            "--valid": (self.path("text", "pairs.tsv"),), "--lr": ("0.001", "0", "-1", "nan", "1e30", "x"),
            "--seed": SMALL, "--clip": ("1", *SMALL), "--accumulate": ("1", "2", "3", "0"), "--resume": None,
            "--precision": ("bf16", "float32", "x"), "--checkpointing": None, "--from": (self.path(*MODELS),),
            "--device": ("cpu", "cuda", "meta", "x", ""), "--parallel": ("ddp", "shard", "x"),
            "--then": ("steps=1", "", "steps=1, length=8", "x=1", "steps=x", "length=-1", "batch=0,steps=1"),
        }, 0.08)  # fmt: skip

    def compare(self) -> list[str]:
        few = [
            self.member() + self.mostly("(d=8, depth=1, heads=2)", "(d=8", "()", "(d=x)")
            for _ in range(self.chance.choice((0, 1, 2)))
        ]
        small = f"gpt(d={self.mostly('8', '7')}, depth=1, heads=2)"
        words = [
            small,
            *few,
            "--data",
            self.data(),
            "--out",
            self.new(),
            "--minutes",
            self.mostly("0.0001", "0", "-1", "nan", "x", "inf"),
        ]
        return (
            words
            + self.some(
                {
                    "--lr": ("0.01", "nan", "1e30"),
                    "--batch": ("2", *NUMBERS),
                    "--length": ("8", *NUMBERS),
                    "--seed": SMALL,
                }
            )
            + self.some({"--seeds": SMALL, "--lrs": ("0.01", "0.01,0.1", ",", "nan", "x"), "--resume": None}, 0.15)
        )

    def generate(self) -> list[str]:
        words = [self.path(*MODELS), "--tokens", self.mostly("3", "1", "9", *SMALL)]
        if self.chance.random() < 0.8:
            words += ["--prompt", self.mostly("The cat", "a", *ODD)]
        return words + self.some({
            "--prompts": (self.path("lines", "short"),), "--source": ("le chat", *ODD),
            "--sources": (self.path("lines"),),
            "--state": (self.path("gpt.state", "words.state"),), "--stop": ("e", " ", *ODD), "--temperature": NUMBERS,
            "--top-k": NUMBERS, "--top-p": ("0.5", *NUMBERS), "--beam": ("2", "3", *SMALL), "--length-penalty": NUMBERS,
            "--seed": NUMBERS, "--device": ("cpu", "x"), "--json": None,
            "--member": (f"{self.there}/mine.py:mine", "gpt", "x"),
        }, 0.15)  # fmt: skip

    def read(self) -> list[str]:
        words = [self.path(*MODELS), self.path("short", "lines", "text"), "--save", self.new()]
        return words + self.some({"--device": ("cpu", "x"), "--member": ("gpt", "x"), "--json": None}, 0.15)

    def evaluate(self) -> list[str]:
        words = [
            self.path(*MODELS),
            "--data",
            self.data(),
            "--length",
            self.mostly("8", "4", "1", *NUMBERS),
            "--bytes",
            self.mostly("100", *SMALL),
        ]
        return words + self.keywords(0.1)[3:] + self.some({
            "--split": ("train", "valid", "test", "x"),
            "--stride": ("1", "3", *NUMBERS), "--lanes": ("1", "2", *NUMBERS),
            "--member": ("gpt", "x"), "--json": None, "--device": ("cpu", "x"),
        }, 0.2)  # fmt: skip

    def fill(self) -> list[str]:
        words = [self.path("bert", "bert", "gpt"), "--text", self.mostly("the c_t", "_", "\\_ _", "none", "\\", *ODD)]
        return words + self.some({"--best": ("1", "2", *NUMBERS), "--json": None, "--member": ("bert", "x")}, 0.2)

    def cost(self) -> list[str]:
        words = [
            self.member(),
            *self.keywords(),
            "--batch",
            self.mostly("2", "1000000", *SMALL),
            "--length",
            self.mostly("8", "1000000", *SMALL),
        ]
        return words + self.some({"--json": None})

    def advise(self) -> list[str]:
        words = ["--task", self.mostly("lm", "mask", "classify", "sing"), "--data", self.data()]
        more = {
            "--length": ("8", "100000000", *SMALL), "--batch": ("2", "1000000", *SMALL), "--json": None,
            "--memory": ("8GB", "1KB", "x", "-1GB", "1e9", *NUMBERS),
        }  # fmt: skip
        return words + self.some(more, 0.5)

    def check(self) -> list[str]:
        words = [
            self.path("mine.py", "broken.py", "fails.py", "text") + self.one("", "", ":mine", ":x"),
            "--law",
            self.one(*LAWS),
        ]
        return words + self.some({"--seconds": ("5", "0", "x", "nan"), "--out": (self.new(),)}, 0.2)

    def spoilt(self, words: list[str]) -> list[str]:
        """With one word left out, said twice, misspelt, replaced, added, or in another place."""
        if not words:
            return words
        place, words = self.chance.randrange(len(words)), list(words)
        how = self.one("drop", "twice", "letter", "odd", "number", "file", "swap", "add", "order", "help")
        if how == "drop":
            del words[place]
        elif how == "twice":
            words.insert(place, words[place])
        elif how == "letter" and words[place]:
            at = self.chance.randrange(len(words[place]))
            words[place] = words[place][:at] + self.one("", "x", "-", "=", "_") + words[place][at + 1 :]
        elif how == "odd":
            words[place] = self.one(*ODD)
        elif how == "number":
            words[place] = self.one(*SMALL)
        elif how == "file":
            words[place] = self.path(*FILES)
        elif how == "swap":
            other = self.chance.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif how == "add":
            words.insert(place, self.one(*ODD, "--json", "--help", "--out", "--device=cpu", "--data", "--x"))
        elif how == "order":
            words = words[:1] + self.chance.sample(words[1:], len(words) - 1)
        elif how == "help" and self.chance.random() < 0.2:
            words.append("--help")
        return words
