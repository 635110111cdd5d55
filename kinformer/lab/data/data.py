"""Data: the contract of every kind of data, which is split in three and becomes a stream of batches.

A file of lab/data is a kind of data if it defines three names. `read(where)` reads the data. `FORM` is its form on the
command line. `SERVES` lists the kinds of input for which models can be trained on it. No other file needs an edit.
Decorate `read` with `named`, unless it already names its data with all options.
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
    """Data of one kind with three splits: for training, for validation, and for one final test.

    name: the specification of the data with its options, as on a command line; see `named`.
    split: a description of the split.
    tokenizer: the tokenizer that made the tokens; None if the tokens are bytes.
    labels: names of the classes of the rows; None if there are no classes.
    noun: name of this kind of data in error messages.
    serves: kinds of input (`Model.reads`) for which models can be trained on this data.
    lends: name of the member that wraps the layers of a text model in order to train on this data.
    counted: unit of the training speed, such as tokens.
    sized: True if the training sets the length of rows; False if the data or the model sets it.
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
        """Hash of all training and validation data, computed once; `resume` recognises the data by it."""
        begins = getattr(self, "begins", None) or {}  # equal bytes with other document boundaries differ
        return fingerprint_of(*(getattr(self, split, None) for split in ("train", "valid")), begins)

    @property
    def vocab(self) -> int:
        """Number of different tokens; 256 for bytes."""
        return 256 if self.tokenizer is None else self.tokenizer.size

    @property
    def sizes(self) -> dict[str, int]:
        """Keywords of a member that follow from the data: numbers of tokens (`vocab`) and labels (`classes`)."""
        return {"vocab": self.vocab} | ({} if self.labels is None else {"classes": len(self.labels)})

    @property
    def keywords(self) -> dict[str, Any]:
        """Default keywords of a member that the data decides, such as the shape of its images."""
        return {}

    @property
    def draw_settings(self) -> Mapping[str, Any]:
        """Settings of how batches are drawn; a resumed training must use the same settings."""
        return {}

    @property
    def bytes_per_token(self) -> float:
        """Mean number of bytes per token in the training data.

        The training log uses it to report the loss of a step in bits per byte, which is an approximation. Validation
        divides by the exact bytes of the tokens that are scored.
        """
        return 1.0

    @abstractmethod
    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Stream:
        """Return the stream of training and validation batches for a model.

        model: the model to train.
        batch: rows per batch.
        length: maximum number of tokens in a row.
        seed: seed of the drawn batches.
        limit: maximum number of bytes for validation.

        Errors: ValueError if there is too little data.
        """

    def metric(self, model: Model) -> Metric:
        """Return the metric of a model on this data; the default is the metric of the model's class."""
        return cast(Metric, getattr(type(model), "metric", model.metric))

    def store_scales(self, model: Model) -> None:
        """Store statistics of the data in the model before training, such as scales. The default stores none."""
        return None

    def longest_length(self, length: int) -> int | None:
        """Return the longest row of a training on rows of up to `length` tokens; None if rows have no length."""
        return length

    def left_out(self, length: int) -> str | None:
        """Return a warning about data that a training on rows of `length` does not see; None if it sees all."""
        return None

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """Return baselines to compare the model's metric with, such as compressors and constant guesses.

        model: the model that is measured.
        split: "train", "valid" or "test"; the baselines use the measured sample of this split.
        length: maximum number of tokens in a row.
        limit: maximum number of bytes in the sample.
        """
        return {}

    def prompts(self, model: Model, split: str, count: int, length: int, tokens: int) -> Prompts:
        """Return prompts from a split for a model to continue.

        model: the model that continues the prompts.
        split: "train", "valid" or "test".
        count: number of prompts.
        length: tokens per prompt for text.
        tokens: tokens that follow each prompt.

        Errors: ValueError if the data has no prompts for this model, or too few.
        """
        raise ValueError(f"cannot take prompts from {self.noun}; give text=PATH, pairs=FILE.tsv or task=NAME")

    @abstractmethod
    def describe_sample(self, split: str, length: int, limit: int) -> str:
        """Describe in words the sample of a split that is measured."""


D = TypeVar("D", bound=Data)


def named(read: Callable[P, D]) -> Callable[P, D]:
    """Decorate a reader `read(where, ...)` so that the data it returns is named after the arguments.

    The name has the form of a command line: "text=notes.txt,documents=blank,valid=more.txt". Training and evaluation
    records hold it. The first word is the name of the reader's file. Options with their default values are left out.
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
