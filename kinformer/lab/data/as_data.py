"""as_data: the data of a training from what a user passes in Python."""

import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy
import torch
from torch import Tensor

from kinformer.checkpoint.own_config import NO_TOKENIZER
from kinformer.core.missing_path import missing_path
from kinformer.core.model import Model, display_name
from kinformer.core.quote import quote, shorten
from kinformer.core.warn import warn
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data
from kinformer.lab.data.read_table import read_table
from kinformer.lab.data.resolve import resolve
from kinformer.lab.data.support.data_readers import data_readers, form_of
from kinformer.lab.data.support.data_tokenizer import ids_tokenizer, text_tokenizer
from kinformer.lab.data.support.epoch_replay import EpochReplay
from kinformer.lab.data.support.model_batch import TOKEN_KINDS, model_batch
from kinformer.lab.data.support.python_table import are_integers, is_dataset, table_of, without_column
from kinformer.lab.data.token_ids import split_token_ids

BATCH, LENGTH = 16, 256  # the default sizes of batches
LONGEST = 4096  # characters of a path on Linux
UNNAMED = 20  # batches of a loader that are measured if no validation data is given
EXPECTED = "a path, KIND=PLACE, a data set, a DataLoader, tensors, or an iterable of batches"


def as_data(
    model: Model,
    data: Any,
    valid: Any = None,
    *,
    tokenizer: Any = None,
    batch: int | None = None,
    length: int | None = None,
    seed: int = 0,
) -> Data | Batches:
    """Return the data that a user passes to `fit` as `Data` or `Batches`.

    model: the model, which determines the meaning of tokens, labels and files.
    data: a path or a specification such as "text=PATH"; a data set of the package `datasets`; a DataLoader, or another
        object that can be iterated again and again; batches, or a function from the training step to a batch; a list
        of texts or of dicts; token ids, also a list of rows; or a `Data` or `Batches` object.
    valid: validation data of the same kind; None takes a part of `data`.
    tokenizer: the tokenizer of texts, or of the token ids; None takes the model's own (`data_tokenizer`).
    batch, length, seed: as in the `Settings` of the training; they are used if rows of token ids are put into batches.

    Errors: ValueError and TypeError, in one line, for data without a clear meaning; FileNotFoundError for a missing
    path.
    """
    if isinstance(data, Data | Batches):
        if valid is not None:
            raise ValueError(f"valid= has no effect on {type(data).__name__}, which brings its own validation data")
        if isinstance(data, Batches):
            _refuse_sizes(batch, length)
        return _with_tokenizer(data, tokenizer)
    if type(data).__module__.partition(".")[0] == "pandas":
        raise TypeError(
            f"data is a {type(data).__name__} of pandas: pass datasets.Dataset.from_pandas(frame), with the columns of "
            "text as texts, or a list of texts"
        )
    if isinstance(data, str | Path):
        return _read_path(model, data, valid, tokenizer)
    data, valid = without_column(data), without_column(valid)
    if (ids := _token_ids(data, "data")) is not None:
        splits: dict[str | None, Any] = {None: ids}
        if valid is not None:
            splits = {"train": ids, "valid": _token_ids(valid, "valid") or _refuse_valid(valid)}
        return split_token_ids("token ids", splits, ids_tokenizer(model, tokenizer))
    if model.reads not in TOKEN_KINDS and is_dataset(data):
        raise ValueError(
            f"this {display_name(model)} reads {model.reads}, but got a data set of rows; give {form_of(model.reads)}"
        )
    if model.reads in TOKEN_KINDS and (table := table_of(data)) is not None:
        valid_table = None if valid is None else table_of(valid) or _refuse_valid(valid)
        if table.is_streamed and valid is None and "valid" not in table.splits:
            raise ValueError(
                "a streaming data set without a validation split needs validation data. Give valid=, or load it "
                "without streaming=True"
            )
        return read_table(model, table, valid_table, batch or BATCH, length or LENGTH, seed, tokenizer)
    _refuse_sizes(batch, length)
    with torch.random.fork_rng(devices=[]):  # a loader that shuffles draws random numbers
        torch.manual_seed(seed)
        return _with_tokenizer(_batches(model, data, valid, seed), tokenizer)


def _with_tokenizer(data: Data | Batches, tokenizer: Any) -> Data | Batches:
    """Return batches with the tokenizer of their token ids; ValueError for data with a tokenizer of its own."""
    if tokenizer is None:
        return data
    if isinstance(data, Data):
        raise ValueError(f"tokenizer= has no effect on {type(data).__name__}, whose tokens are made. Leave it out")
    return replace(data, tokenizer=tokenizer)


def _refuse_sizes(batch: int | None, length: int | None) -> None:
    if given := [name for name, value in {"batch": batch, "length": length}.items() if value is not None]:
        raise ValueError(f"{given[0]}= has no effect on batches that are ready, such as a DataLoader's. Leave it out")


def _refuse_valid(valid: Any) -> NoReturn:
    raise ValueError(f"valid must be data of the same kind as the training data: got {quote(valid)}")


# Paths ---------------------------------------------------------------------------------------------------------------


def _read_path(model: Model, data: str | Path, valid: Any, tokenizer: Any) -> Data:
    """Read the file or folder of a path, or the data that a specification names."""
    if valid is not None and not isinstance(valid, str | Path):
        _refuse_valid(valid)
    readers, form, text = data_readers(), form_of(model.reads), str(data)
    kind = text.partition("=")[0] if isinstance(data, str) and "=" in text else ""
    options: dict[str, Any] = {}
    if valid is not None:
        options["valid"] = str(valid).removeprefix(f"{kind or form.partition('=')[0]}=")
    own = text_tokenizer(model, tokenizer)
    if tokenizer is not None:
        options["tokenizer"] = own or NO_TOKENIZER
    if kind in readers:
        return resolve(text, None if "tokenizer" in options else own).read(**options)
    if "\n" in text or len(text) > LONGEST:
        raise ValueError(
            f"data is a text of {len(text):,} characters, but fit takes the path of a file or {form}. "
            "Pass [text], a list of texts, or write it to a file"
        )
    if not Path(text).expanduser().exists():
        if kind and not any(mark in kind for mark in "/\\."):
            resolve(text)  # its error names the kinds of data
        raise FileNotFoundError(missing_path(text, f"give the path of a file or folder, or {form}"))
    reader = readers[form.partition("=")[0]].read
    if own is not None and "tokenizer" in inspect.signature(reader).parameters:
        options["tokenizer"] = own
    return reader(text, **options)


# Token ids -----------------------------------------------------------------------------------------------------------


def _token_ids(data: Any, name: str) -> list[numpy.ndarray] | None:
    """Return rows of token ids from a list of them, or from a list, tensor or array [N] or [rows, N]; else None."""
    if isinstance(data, list | tuple) and data:
        if are_integers(data):
            return [numpy.array(data)]
        return [numpy.array(row) for row in data if row] if all(map(are_integers, data)) else None
    if not isinstance(data, Tensor | numpy.ndarray):
        return None
    ids = data.detach().cpu().numpy() if isinstance(data, Tensor) else data
    if ids.ndim not in (1, 2) or not numpy.issubdtype(ids.dtype, numpy.integer):
        raise ValueError(f"{name} is {quote(data)}, expected token ids: integers [N], or [rows, N]. Or give {EXPECTED}")
    return [ids] if ids.ndim == 1 else list(ids)


# Batches -------------------------------------------------------------------------------------------------------------


def _batches(model: Model, data: Any, valid: Any, seed: int) -> Batches:
    """Return the batches of a loader, of an iterable of batches, or of a function of the training step."""
    convert = partial(model_batch, reads=model.reads) if model.reads in TOKEN_KINDS else _as_it_is
    of_valid = None if valid is None else [convert(item) for item in _iterated(model, valid, "valid")]
    if callable(data) and not isinstance(data, Iterable):
        if of_valid is None:
            raise ValueError("data is a function of the step, which leaves no validation data. Give valid=[BATCH, ...]")
        return Batches(lambda step: convert(data(step)), of_valid)
    items = _iterated(model, data, "data")
    if isinstance(data, list | tuple | Iterator):  # batches in memory, or a generator, which ends
        return Batches([convert(item) for item in items], of_valid)
    _refuse_own_share(data)
    if of_valid is None:
        of_valid = [convert(item) for item in islice(items, UNNAMED)]
        warn(f"no validation data: the first {len(of_valid):,} batches of the training data are measured; give valid=")
    replay = EpochReplay(data, seed)
    return Batches(lambda step: convert(replay(step)), of_valid)


def _as_it_is(batch: Any) -> Any:
    return batch


def _iterated(model: Model, data: Any, name: str) -> Iterable[Any]:
    """Return an iterable of batches; TypeError, in one line, for other values."""
    if isinstance(data, torch.utils.data.Dataset) and not isinstance(data, Iterable):
        raise TypeError(f"{name} is a Dataset of PyTorch: wrap it as DataLoader({name}, batch_size=16)")
    if isinstance(data, str | bytes | Mapping | Tensor) or not isinstance(data, Iterable):
        article = f"this {display_name(model)} reads {model.reads}"
        raise TypeError(f"wrong {name} for fit: got {shorten(quote(data))}, expected {EXPECTED}; {article}")
    return data


def _refuse_own_share(loader: Any) -> None:
    """Raise ValueError for a loader that gives each process its own batches, because a training shares each batch."""
    if isinstance(getattr(loader, "sampler", None), torch.utils.data.DistributedSampler):
        raise ValueError(
            "the DataLoader has a DistributedSampler, but fit itself shares each batch among processes; build the "
            "loader without it"
        )
