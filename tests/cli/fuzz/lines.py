"""Command lines, right and wrong, drawn by a seed."""

from collections.abc import Callable
from pathlib import Path

from kinformer.core.discover import kinds, members
from tests.cli.fuzz.asking import Asking
from tests.cli.fuzz.drawing import FILES, LAWS, MODELS, NUMBERS, ODD, SHOWN, SMALL

CLAIMS = ("nothing", "", "act_parit", "bigbird", "\udcff")  # a claim that there is takes a minute
FITTING = {  # by member, what it learns from
    "transformer": "pairs",
    "informer": "series",
    "decision_transformer": "offline",
    "behaviour_cloning": "offline",
    "image_transformer": "images",
    "axial_transformer": "images",
    "camtl": "multitask",
    "set_transformer": "sets",
    "bert_classifier": "labelled",
}
SIZES = {"informer": "context=4", "image_transformer": "block=8", "axial_transformer": "depth=1"}


class Lines(Asking):
    """Lines of words, of all commands."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.commands: dict[str, tuple[int, Callable[[], list[str]]]] = {
            "list": (1, self.listing),
            "show": (2, self.show),
            "train": (6, self.train),
            "generate": (6, self.generate),
            "read": (3, self.read),
            "evaluate": (6, self.evaluate),
            "fill": (2, self.fill),
            "compare": (2, self.compare),
            "cost": (3, self.cost),
            "check": (1, self.check),
            "advise": (1, self.advise),
            "claim": (1, self.claim),
            "forecast": (2, self.forecast),
            "calibrate": (2, self.calibrate),
            "play": (2, self.play),
            "datastore": (4, self.datastore),
            "knn-lm": (2, self.knn),
        }

    def draw(self) -> list[str]:
        """A line that is right or nearly so, and then, more often than not, is spoilt."""
        name = self.rng.choices(list(self.commands), [often for often, _ in self.commands.values()])[0]
        words = [name, *self.commands[name][1]()]
        for _ in range(self.rng.choice((0, 0, 0, 0, 1, 1, 2))):
            words = self.spoilt(words)
        return words

    def listing(self) -> list[str]:
        return [self.choose(*kinds())] if self.rng.random() < 0.7 else []

    def show(self) -> list[str]:
        out = self.sample_options({"--out": (self.new() + self.choose(".png", ".svg", ".x", ""),)}, 0.1)
        return [
            self.choose(*SHOWN, self.choose(*members())),
            *self.sample_options({"--length": ("1", "7", *SMALL), "--cost": None}),
            *out,
        ]

    def train(self) -> list[str]:
        name = self.member() if self.rng.random() < 0.8 else self.choose(*FITTING)
        words = [name, *self.keywords(), *([SIZES[name]] if name in SIZES else [])]
        words += ["--data", self.data(*([FITTING[name]] if name in FITTING else [])), "--out", self.new()]
        words += self.choose("--steps 1", "--steps 2", "--steps 1", "--minutes 0.0001").split()
        words += ["--batch", self.mostly("2", "1", *NUMBERS), "--length", self.mostly("8", "16", "1", *NUMBERS)]
        return words + self.sample_options(
            {
                "--valid": (self.path("text", "pairs.tsv"),),
                "--lr": ("0.001", "0", "-1", "nan", "1e30", "x"),
                "--schedule": ("linear", "noam", "inverse_sqrt", "x"),
                "--warmup": ("0.1", "5", *NUMBERS, "nan", "x"),
                "--betas": ("0.9,0.98", "0.9", "1,2", "x,", "nan,0"),
                "--eps": ("1e-9", "0", "nan", "x"),
                "--seed": SMALL,
                "--clip": ("1", *SMALL),
                "--accumulate": ("1", "2", "3", "0"),
                "--resume": None,
                "--precision": ("bf16", "float32", "x"),
                "--checkpointing": None,
                "--from": (self.path(*MODELS),),
                "--device": ("cpu", "cuda", "meta", "x", ""),
                "--parallel": ("ddp", "shard", "x"),
                "--overwrite": None,
                "--tensorboard": None,
                "--then": ("steps=1", "", "steps=1, length=8", "x=1", "steps=x", "length=-1", "batch=0,steps=1"),
            },
            0.08,
        )

    def compare(self) -> list[str]:
        few = [
            self.member() + self.mostly("(d=8, depth=1, heads=2)", "(d=8", "()", "(d=x)")
            for _ in range(self.rng.choice((0, 1, 2)))
        ]
        small = f"gpt(d={self.mostly('8', '7')}, depth=1, heads=2)"
        words = [
            small,
            *few,
            "--data",
            self.data(),
            "--out",
            self.new(),
            *self.choose(
                f"--minutes {self.mostly('0.0001', '0', '-1', 'nan', 'x', 'inf')}",
                f"--steps {self.mostly('1', '0', 'x', '1.5')}",
                f"--flops {self.mostly('1e6', '0', '-1', 'nan', 'inf', 'x')}",
            ).split(),
        ]
        return (
            words
            + self.sample_options(
                {
                    "--lr": ("0.01", "nan", "1e30"),
                    "--batch": ("2", *NUMBERS),
                    "--length": ("8", *NUMBERS),
                    "--seed": SMALL,
                }
            )
            + self.sample_options(
                {"--seeds": SMALL, "--lrs": ("0.01", "0.01,0.1", ",", "nan", "x"), "--resume": None}, 0.15
            )
            + self.sample_options(
                {"--match": ("parameters", "x"), "--overwrite": None, "--valid": (self.path("text"),)}, 0.1
            )
        )

    def cost(self) -> list[str]:
        words = [
            self.member(),
            *self.keywords(),
            "--batch",
            self.mostly("2", "1000000", *SMALL),
            "--length",
            self.mostly("8", "100000000", *SMALL),
        ]
        return words + self.sample_options({"--json": None})

    def advise(self) -> list[str]:
        words = ["--task", self.mostly("lm", "mask", "classify", "sing")]
        words += ["--data", self.data()] if self.rng.random() < 0.8 else []
        options = {
            "--length": ("8", "100000000", *SMALL),
            "--batch": ("2", "1000000", *SMALL),
            "--json": None,
            "--memory": ("8GB", "1KB", "x", "-1GB", "1e9", *NUMBERS),
        }
        return words + self.sample_options(options, 0.5)

    def check(self) -> list[str]:
        words = [
            self.path("mine.py", "broken.py", "fails.py", "text") + self.choose("", "", ":mine", ":x"),
            "--law",
            self.choose(*LAWS),
        ]
        return words + self.sample_options({"--seconds": ("5", "0", "x", "nan"), "--out": (self.new(),)}, 0.2)

    def claim(self) -> list[str]:
        return [
            self.choose(*CLAIMS),
            *self.sample_options({"--seeds": ("2", "0", "1", *SMALL), "--out": (self.new(),)}),
        ]

    def spoilt(self, words: list[str]) -> list[str]:
        """With one word left out, said twice, misspelt, replaced, added, or in another place."""
        if not words:
            return words
        place, words = self.rng.randrange(len(words)), list(words)
        mutation = self.choose("drop", "twice", "letter", "odd", "number", "file", "swap", "add", "order", "help")
        if mutation == "drop":
            del words[place]
        elif mutation == "twice":
            words.insert(place, words[place])
        elif mutation == "letter" and words[place]:
            at = self.rng.randrange(len(words[place]))
            words[place] = words[place][:at] + self.choose("", "x", "-", "=", "_") + words[place][at + 1 :]
        elif mutation == "odd":
            words[place] = self.choose(*ODD)
        elif mutation == "number":
            words[place] = self.choose(*SMALL)
        elif mutation == "file":
            words[place] = self.path(*FILES)
        elif mutation == "swap":
            other = self.rng.randrange(len(words))
            words[place], words[other] = words[other], words[place]
        elif mutation == "add":
            words.insert(place, self.choose(*ODD, "--json", "--help", "--out", "--device=cpu", "--data", "--x"))
        elif mutation == "order":
            words = words[:1] + self.rng.sample(words[1:], len(words) - 1)
        elif mutation == "help" and self.rng.random() < 0.2:
            words.append("--help")
        return words
