"""Checks that data fits a model: its kind, its tokens, its labels and the length of its rows."""

from kinformer.checkpoint.unknown_tokenizer import UnknownTokenizer, own_tokenizer
from kinformer.core.model import Model, display_name
from kinformer.lab.data.batches import Batches
from kinformer.lab.data.data import Data, Stream
from kinformer.lab.data.support.data_readers import data_serving, form_of

UNITS = {"vocab": "kinds of tokens", "classes": "labels"}  # other sizes are named after their keyword


def open_stream(model: Model, data: Data | Batches, batch: int, length: int, seed: int, limit: int) -> Stream:
    """Check that data fits a model, and return the sequence of batches on which the model is trained.

    model, data: the model, and its data; `Batches` are returned as they are, without checks.
    batch, length, seed, limit: as for `Data.stream`.

    Errors: ValueError if the model does not read data of this kind, or if the data does not fit the model.
    """
    if isinstance(data, Batches):
        return data
    refuse_unfit(model, data, length)
    return data.stream(model, batch, length, seed, limit)


def refuse_unfit(model: Model, data: Data, length: int) -> None:
    """Raise ValueError if the data does not fit the model: its kind, tokens, labels, sizes or row length."""
    name = display_name(model)
    refuse_unread(model, data)
    refuse_other_tokens(model, data)
    refuse_other_labels(model, data)
    rows = data.longest_length(length)  # None: the data or the model sets the length
    if rows is not None and (longest := model.longest) is not None and longest < rows:
        shorter = f"train it on a length of {longest}, or " if rows == length else ""
        raise ValueError(
            f"rows have {rows} tokens, but this {name} has only {longest} learned positions; "
            f"{shorter}give it length={rows}"
        )
    refuse_few(model, data)


def refuse_unread(model: Model, data: Data | type[Data]) -> None:
    """Raise ValueError if the model cannot be trained on this kind of data, such as images."""
    if model.reads not in data.serves:
        serving = data_serving(model.reads)
        reading = f"this {display_name(model)} reads {model.reads if serving is None else serving[0].noun}"
        others = f", or train a member that reads this data (`kinformer show data/{data.serves[0]}`)"
        raise ValueError(f"{reading}, but got {data.noun}; give {form_of(model.reads)}{others}")


def refuse_other_tokens(model: Model, data: Data) -> None:
    """Raise ValueError if a trained model and the data use different tokenizers."""
    own = own_tokenizer(model)
    if isinstance(own, UnknownTokenizer):
        if data.tokenizer is None:
            own.refuse_texts()
    elif model.trained_length is not None:
        mine, theirs = (None if tokenizer is None else tokenizer.sha256 for tokenizer in (own, data.tokenizer))
        if mine != theirs:
            units = ["bytes" if tokenizer is None else "tokens of a tokenizer" for tokenizer in (mine, theirs)]
            raise ValueError(
                f"this {display_name(model)} was trained on {units[0]}, but {data.name} has "
                f"{units[1] if units[1] != units[0] else 'tokens of another tokenizer'}; "
                f"give tokenizer={'bytes' if mine is None else 'DIR, the folder of the model'}"
            )


def refuse_other_labels(model: Model, data: Data) -> None:
    """Raise ValueError if the model was trained on labels that differ from the labels of the data."""
    if model.labels is not None and data.labels is not None and model.labels != data.labels:
        mine, theirs = (", ".join(map(repr, labels)) for labels in (model.labels, data.labels))
        raise ValueError(
            f"this {display_name(model)} was trained on the labels {mine:.150}, but {data.name} has {theirs:.150}; "
            "give a file with exactly the labels of the model"
        )


def refuse_few(model: Model, data: Data) -> None:
    """Raise ValueError if the data has more different tokens or classes than the model was made for."""
    for keyword, count in data.sizes.items():
        if (limit := getattr(model, keyword, count)) < count:
            unit = UNITS.get(keyword, keyword)
            kinds = "256 kinds of bytes" if (keyword, count) == ("vocab", 256) else f"{count:,} {unit}"
            advice = f"this {display_name(model)} is made for {limit}; give it {keyword}={count}"
            raise ValueError(f"{data.noun} has {kinds}, but {advice}")
