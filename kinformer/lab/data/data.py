"""Data: what is read from somewhere, split in three, and becomes a stream of batches for a model that reads its kind.

A file of lab/data with `read(where)`, `FORM` (how it is written on a command line) and `SERVES` (what models read
that can learn from it) is a kind of data, and needs no other file edited. Decorate `read` with `named`, unless it names
its data with all options itself.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import cached_property, wraps
from typing import Any, ClassVar, ParamSpec, TypeVar, cast

from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.core.model import Metric, Model
from kinformer.decoding.prompts import Prompts
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.lanes import Lanes
from kinformer.lab.data.random_windows import RandomWindows
from kinformer.lab.data.resumable_stream import ResumableStream
from kinformer.lab.data.support.fingerprint import fingerprint_of

Stream = Lanes | RandomWindows | Batches | ResumableStream
P = ParamSpec("P")


class Data(ABC):
    """Data of one kind: to learn from, to watch, and to report once at the very end.

    `name` is how it was written, with its options (`named`), `noun` how an error names it, `serves` what models read
    that can learn from it, and `split` describes the split. `tokenizer` made its tokens; None if they are bytes.
    `labels` are the names of the classes of rows; None without classes. `lends` names the member that takes the layers
    of a model that reads text, to learn from such data. `counted` is the unit of speed, such as tokens. `sized` is True
    if a training sets the length of rows; else the data or the model sets it.
    """

    name: str
    split: str = ""
    tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] | None = None
    noun: ClassVar[str]
    serves: ClassVar[tuple[str, ...]]
    lends: ClassVar[str] = ""
    counted: ClassVar[str] = "tokens"
    sized: ClassVar[bool] = True

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all training and validation data, by which `resume` recognises it; computed once."""
        begins = getattr(self, "begins", None) or {}  # the same bytes as other documents are other data
        return fingerprint_of(*(getattr(self, split, None) for split in ("train", "valid")), begins)

    @property
    def vocab(self) -> int:
        """How many kinds of tokens there are; of bytes 256."""
        return 256 if self.tokenizer is None else self.tokenizer.size

    @property
    def sizes(self) -> dict[str, int]:
        """Keywords of a member that follow from the data: how many kinds of tokens, and of labels, there are."""
        return {"vocab": self.vocab} | ({} if self.labels is None else {"classes": len(self.labels)})

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of a member that it decides, where they are not given: the shape of its pictures."""
        return {}

    @property
    def draw_settings(self) -> Mapping[str, Any]:
        """What is chosen of how batches are drawn: a training goes on with the same alone."""
        return {}

    @property
    def bytes_per_token(self) -> float:
        """The mean number of bytes of a token in train.

        The log of a training uses it to report the loss of a step in bits per byte, which is an approximation.
        Measurements divide by the exact bytes of the tokens that they score.
        """
        return 1.0

    @abstractmethod
    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Stream:
        """What a model that reads it learns from, step by step, on rows of up to `length` tokens.

        `limit` is how many bytes are measured at most. ValueError where there is too little.
        """

    def metric(self, model: Model) -> Metric:
        """What a model is judged by on it: what its class says, unless the data decides."""
        return cast(Metric, getattr(type(model), "metric", model.metric))

    def store_scales(self, model: Model) -> None:
        """Tell a model what it keeps of the data beside its weights, such as the scale of numbers, before it learns."""
        return None

    def longest_length(self, length: int) -> int | None:
        """The longest row of a training on rows of up to `length`; None where rows have no length."""
        return length

    def left_out(self, length: int) -> str | None:
        """What such a training does not see, as a warning; None where it sees all."""
        return None

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """What the measure of such a model is read beside: what compressors, guesses and the like reach on that split.

        `split` is train, valid or test, and of it what is measured in at most `limit` bytes.
        """
        return {}

    def prompts(self, model: Model, split: str, count: int, length: int, tokens: int) -> Prompts:
        """So many texts of a split for a model to go on from; those of a text have `length` tokens and `tokens` follow.

        ValueError where it has none for such a model, or too few.
        """
        raise ValueError(f"{self.noun} has nothing to write on from; give text=PATH, pairs=FILE.tsv or task=NAME")

    @abstractmethod
    def describe_sample(self, split: str, length: int, limit: int) -> str:
        """What of a split is measured, in words."""


D = TypeVar("D", bound=Data)


def named(read: Callable[P, D]) -> Callable[P, D]:
    """Decorate a reader `read(where, ...)` so that the data it returns is named after the arguments.

    The name has the form of a command line: "text=notes.txt,documents=blank,valid=more.txt". Records of trainings and
    measurements hold it. The first word is the name of the reader's file. Options with their default values are left
    out.
    """
    kind = read.__module__.rpartition(".")[2]
    parameters = inspect.signature(read).parameters

    @wraps(read)
    def reader(*args: P.args, **kwargs: P.kwargs) -> D:
        data = read(*args, **kwargs)
        if not is_dataclass(data):
            return data
        where, *rest = inspect.signature(read).bind(*args, **kwargs).arguments.items()
        options = dict[str, Any]()
        for name, value in rest:
            options |= value if parameters[name].kind is inspect.Parameter.VAR_KEYWORD else {name: value}
        usual = {name: parameter.default for name, parameter in parameters.items()}
        words = [f"{name}={value}" for name, value in options.items() if usual.get(name) != value]
        return replace(data, name=",".join([f"{kind}={where[1]}", *words]))

    return reader
