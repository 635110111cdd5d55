"""Data: the base class of every kind of data, such as texts or images, with three splits and batches.

A file of lab/data is a kind of data if it defines three names. `read(where)` reads the data. `FORM` is its form on the
command line. `SERVES` lists the kinds of model input (`Model.reads`, such as "text") that the data provides. No other
file needs an edit. Decorate `read` with `named`, unless `read` itself sets the name of its data, with all options.
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
    """Base class of a kind of data with three splits: for training, validation, and one final test.

    A subclass supplies the splits `train`, `valid` and `test`, and `noun`, `serves`, `stream` and `describe_sample`.

    name: the specification of the data with its options, as on a command line; see `named`.
    split: one line about how the data is split in three.
    tokenizer: the tokenizer that made the tokens; None if the tokens are bytes.
    labels: names of the classes, for classification; None if there are no classes.
    noun: name of this kind of data in error messages.
    serves: kinds of model input (`Model.reads`, such as "text") that this data provides.
    lends: the member (a named model of the library) that can take the layers of a text model and train them on this
        data; "" if there is none.
    counted: unit in which the speed of training is counted, such as tokens.
    sized: True if the option `length` of a training sets the length of rows; False if the data or the model sets it.
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
        """Hash of all training and validation data; a resumed training compares it with the saved hash."""
        begins = getattr(self, "begins", None) or {}  # equal bytes with other document boundaries differ
        return fingerprint_of(*(getattr(self, split, None) for split in ("train", "valid")), begins)

    @property
    def vocab(self) -> int:
        """Number of different tokens; 256 for bytes."""
        return 256 if self.tokenizer is None else self.tokenizer.size

    @property
    def sizes(self) -> dict[str, int]:
        """Arguments of a model that follow from the data: numbers of tokens (`vocab`) and labels (`classes`)."""
        return {"vocab": self.vocab} | ({} if self.labels is None else {"classes": len(self.labels)})

    @property
    def keywords(self) -> dict[str, Any]:
        """Arguments of a model whose defaults follow from the data, such as the shape of its images."""
        return {}

    @property
    def draw_settings(self) -> Mapping[str, Any]:
        """Settings that decide how batches are drawn; a resumed training must use the same settings."""
        return {}

    @property
    def bytes_per_token(self) -> float:
        """Mean number of bytes per token in the training data.

        The training log divides the bits of a step by it, so its bits per byte are approximate. Validation divides by
        the exact number of bytes of the predicted tokens.
        """
        return 1.0

    @abstractmethod
    def stream(self, model: Model, batch: int, length: int, seed: int, limit: int) -> Stream:
        """Return a stream: an object with a method `at(step)` that returns the training batch of a step.

        All streams except `Lanes` and `RandomWindows`, which are for texts, also hold the validation batches.

        model: the model to train.
        batch: rows per batch.
        length: maximum number of tokens in a row.
        seed: seed of the random choice of batches.
        limit: maximum size of the validation sample. The kind of data sets the unit, such as bytes of a text or tokens
            of pairs.

        Errors: ValueError if there is too little data.
        """

    def metric(self, model: Model) -> Metric:
        """Return the metric of a model on this data; the default is the metric of the model's class."""
        return cast(Metric, getattr(type(model), "metric", model.metric))

    def store_scales(self, model: Model) -> None:
        """Store statistics of the data, such as means, in the model before training; by default none."""
        return None

    def longest_length(self, length: int) -> int | None:
        """Return the number of tokens in the longest training row, for rows of up to `length` tokens.

        It is None for data without rows of tokens, such as images, series and environments.
        """
        return length

    def left_out(self, length: int) -> str | None:
        """Return a warning about training data that rows of `length` tokens leave out; None if all is used."""
        return None

    def levels(self, model: Model, split: str, length: int, limit: int) -> Mapping[str, float]:
        """Return the scores of baselines by name, such as compressors and constant guesses.

        model: the model that is compared with the baselines.
        split: "train", "valid" or "test"; the baselines use the sample of this split on which the model is measured.
        length: maximum number of tokens in a row.
        limit: maximum size of the sample, as for `stream`.
        """
        return {}

    def prompts(self, model: Model, split: str, count: int, length: int, tokens: int) -> Prompts:
        """Return beginnings of texts from a split for a model to continue, and the true continuations.

        model: the model that continues the prompts.
        split: "train", "valid" or "test".
        count: number of prompts.
        length: tokens in a prompt of a text; other kinds of data set it themselves.
        tokens: tokens in the true continuation of a text, likewise.

        Errors: ValueError if the data has no prompts for this model, or too few.
        """
        raise ValueError(f"cannot take prompts from {self.noun}; give text=PATH, pairs=FILE.tsv or task=NAME")

    @abstractmethod
    def describe_sample(self, split: str, length: int, limit: int) -> str:
        """Describe in words the sample of a split on which a model is measured."""


D = TypeVar("D", bound=Data)


def named(read: Callable[P, D]) -> Callable[P, D]:
    """Decorate the function `read(where, ...)` of a kind of data: it sets the name of the returned data.

    The name is made of the arguments, as on a command line: "text=notes.txt,documents=blank,valid=more.txt". The
    records of a training and of an evaluation contain it. The first word is the name of the file that defines `read`.
    Options with their default values are left out.
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
