"""Lines that ask something of a trained model, or of a datastore, drawn by a seed."""

from tests.cli.fuzz.drawing import MODELS, NUMBERS, ODD, SMALL, WRITERS, Drawn
from tests.cli.fuzz.world import UNSIZED

READS = {  # by model, data that it reads
    "pairs": "pairs",
    "informer": "series",
    "acts": "offline",
    "draws": "images",
    "tasks": "multitask",
    "plays": "env",
}
SPLIT = ("train", "valid", "test", "x")


class Asking(Drawn):
    """The commands that read a folder which `train` or `datastore build` wrote."""

    def own(self, *extra: str) -> dict[str, tuple[str, ...] | None]:
        """The options of every command that loads a model."""
        return {"--member": (f"{self.root}/mine.py:mine", *extra, "x"), "--device": ("cpu", "cpu", "x", "")}

    def model(self, *names: str) -> str:
        """A model's folder, mostly one of these."""
        return self.path(*(names if self.rng.random() < 0.85 else MODELS))

    def store(self) -> str:
        return self.path("store", "store", "store", "gpt")

    def generate(self) -> list[str]:
        if self.rng.random() < 0.08:
            return self.pictures()
        words = [self.model(*WRITERS), "--tokens", self.mostly("3", "1", "9", *SMALL)]
        if self.rng.random() < 0.8:
            words += ["--prompt", self.mostly("The cat", "a", *ODD)]
        return (
            words
            + self.sample_options(
                {
                    "--prompts": (self.path("lines", "short"),),
                    "--source": ("le chat", *ODD),
                    "--sources": (self.path("lines"),),
                    "--state": (self.path("gpt.state", "words.state"),),
                    "--stop": ("e", " ", *ODD),
                    "--temperature": NUMBERS,
                    "--top-k": NUMBERS,
                    "--top-p": ("0.5", *NUMBERS),
                    "--min-p": ("0.1", *NUMBERS),
                    "--repetition-penalty": ("1.2", *NUMBERS),
                    "--beam": ("2", "3", *SMALL),
                    "--best": ("2", *SMALL),
                    "--prompt-lookup": ("4", *SMALL),
                    "--length-penalty": NUMBERS,
                    "--seed": NUMBERS,
                    "--json": None,
                    **self.own("gpt"),
                },
                0.15,
            )
            + self.sample_options(
                {
                    "--layers": (self.new() + ".png", self.new()),
                    "--knn": None,
                    "--datastore": (self.store(),),
                    "--pictures": ("1", *NUMBERS),
                    "--label": NUMBERS,
                },
                0.04,
            )
        )

    def pictures(self) -> list[str]:
        """Of what draws."""
        words = [self.model("draws"), "--out", self.new() + self.choose(".png", ".png", ".png", "", ".x")]
        words += ["--pictures", self.mostly("1", "2", *SMALL)]
        return words + self.sample_options(
            {
                "--temperature": NUMBERS,
                "--label": ("0", "1", *SMALL),
                "--enlarge": (self.data("images"),),
                "--json": None,
                "--seed": SMALL,
                "--prompt": ODD,
                **self.own("image_transformer"),
            },
            0.12,
        )

    def read(self) -> list[str]:
        words = [self.model(*WRITERS), self.path("short", "lines", "text"), "--save", self.new()]
        return words + self.sample_options({"--json": None, "--overwrite": None, **self.own("gpt")}, 0.15)

    def evaluate(self) -> list[str]:
        name = self.choose(*MODELS)
        kind = READS.get(name, "text")
        rows = [] if kind in UNSIZED else ["--length", self.mostly("8", "4", "1", *NUMBERS)]
        words = [self.path(name), "--data", self.data(kind), *rows, "--bytes", self.mostly("100", *SMALL)]
        return (
            words
            + self.keywords(0.1)[3:]
            + self.sample_options(
                {
                    "--split": ("all", *SPLIT),
                    "--stride": ("1", "3", *NUMBERS),
                    "--lanes": ("1", "2", *NUMBERS),
                    "--json": None,
                    **self.own("gpt"),
                },
                0.15,
            )
            + self.sample_options({"--knn": None, "--datastore": (self.store(),)}, 0.05)
        )

    def fill(self) -> list[str]:
        words = [self.path("bert", "bert", "gpt"), "--text", self.mostly("the c_t", "_", "\\_ _", "none", "\\", *ODD)]
        return words + self.sample_options({"--best": ("1", "2", *NUMBERS), "--json": None, **self.own("bert")}, 0.2)

    def forecast(self) -> list[str]:
        out = self.new() + self.choose(".csv", ".csv", ".png", ".png", ".x", "")
        words = [self.model("informer"), "--data", self.data("series"), "--out", out]
        return words + self.sample_options(
            {"--windows": ("1", "3", *NUMBERS), "--split": SPLIT, **self.own("informer")}, 0.15
        )

    def calibrate(self) -> list[str]:
        words = [self.model("calm"), "--data", self.data("text", "task"), "--length", self.mostly("8", "4", *NUMBERS)]
        if self.rng.random() < 0.3:
            words += [
                "--search",
                self.mostly("3", "grid", "coordinates", *SMALL),
                "--samples",
                self.mostly("4", *SMALL),
            ]
            return words + self.sample_options({"--delta": ("0.5", *NUMBERS), "--json": None, **self.own("calm")}, 0.2)
        words += ["--delta", self.mostly("0.9", *NUMBERS), "--epsilon", self.mostly("0.5", *NUMBERS)]
        words += ["--tokens", self.mostly("2", "1", *SMALL), "--thresholds", self.mostly("3", *SMALL)]
        return words + self.sample_options(
            {
                "--samples": ("2", "3", *SMALL),
                "--split": SPLIT,
                "--consistency": ("textual", "risk", "x"),
                "--json": None,
                **self.own("calm"),
            },
            0.2,
        )

    def play(self) -> list[str]:
        words = [self.model("acts", "plays")] if self.rng.random() < 0.8 else []
        words += ["--env", self.data("env").removeprefix("env="), "--episodes", self.mostly("1", "2", *SMALL)]
        return words + self.sample_options(
            {
                "--return": ("1", "0", *NUMBERS),
                "--random": ("0.5", "1", *NUMBERS),
                "--out": (self.new(),),
                "--save": (self.new() + ".npz", self.new()),
                "--seed": SMALL,
                **self.own("agent"),
            },
            0.2,
        )

    def datastore(self) -> list[str]:
        """One of its own commands, mostly."""
        builders = {"build": self.build, "index": self.index, "info": self.info, "search": self.search}
        name = self.choose("build", "build", *builders)
        return [self.mostly(name, "", "x", "--json"), *builders[name]()]

    def build(self) -> list[str]:
        words = [self.model("gpt", "lanes", "words"), "--data", self.data("text"), "--out", self.new()]
        return words + self.sample_options(
            {
                "--split": SPLIT,
                "--tap": ("last_ffn_input", "0", "0.1.input", "9.9", *ODD),
                "--length": ("8", *NUMBERS),
                "--dtype": ("float32", "float16", "x"),
                "--stride": ("4", "8", *NUMBERS),
                "--append": None,
                "--index": ("flat", "hnsw", "ivf:lists=2", "ivf_pq", "ivf:lists=x", "x"),
                "--resume": None,
                "--json": None,
                **self.own("gpt"),
            },
            0.15,
        )

    def index(self) -> list[str]:
        return [self.store(), self.mostly("flat", "hnsw", "ivf:lists=2,probes=1", "ivf:x=1", "ivf_pq", "", "x")]

    def info(self) -> list[str]:
        return [self.store(), *self.sample_options({"--json": None})]

    def search(self) -> list[str]:
        words = [self.store(), "--prompt", self.mostly("The cat", "a", *ODD)]
        options = {
            "--k": ("2", "10000", *NUMBERS),
            "--exact": None,
            "--model": (self.path("gpt", "lanes"),),
            "--json": None,
        }
        return words + self.sample_options({**options, **self.own("gpt")}, 0.2)

    def knn(self) -> list[str]:
        words = [self.model("gpt", "tuned"), "--datastore", self.store(), "--data", self.data("text")]
        words += ["--bytes", self.mostly("40", "20", *SMALL), "--k", self.mostly("2", "4", *SMALL)]
        options = {"--cache": ("3", "0", *SMALL), "--length": ("8", *NUMBERS), "--json": None}
        return words + self.sample_options({**options, **self.own("gpt")}, 0.15)
