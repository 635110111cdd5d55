"""Tokenizers of a training: for its texts, and for token ids that another library made."""

from typing import Any

from kinformer.checkpoint.tokenizer import BYTES, Tokenizer
from kinformer.checkpoint.tokenizer_choice import as_tokenizer
from kinformer.checkpoint.unknown_tokenizer import UnknownTokenizer, own_tokenizer
from kinformer.core.model import Model, display_name
from kinformer.lab.data.support.model_batch import TOKEN_KINDS


def text_tokenizer(model: Model, tokenizer: Any = None) -> Tokenizer | None:
    """Return the tokenizer for texts: the given one, or else the model's own; None for bytes.

    model: the model.
    tokenizer: a tokenizer in a form that `as_tokenizer` takes; None takes the model's own.

    Errors: ValueError if the model reads no tokens, or was trained with another tokenizer. Errors of `as_tokenizer`.
    """
    own = own_tokenizer(model)
    if tokenizer is None:
        return own
    if model.reads not in TOKEN_KINDS:
        raise ValueError(f"tokenizer= has no effect: this {display_name(model)} reads {model.reads}. Leave it out")
    given = as_tokenizer(tokenizer)
    if _is_trained(model) and not isinstance(own, UnknownTokenizer) and _hash(own) != _hash(given):
        raise ValueError(
            f"tokenizer= is not the tokenizer that this {display_name(model)} was trained with. Leave it out, or train "
            "a new model"
        )
    return given


def ids_tokenizer(model: Model, tokenizer: Any = None) -> Tokenizer | None:
    """Return the tokenizer that made token ids: the given one, the trained model's own, or an unknown one.

    The ids of a new model with 256 tokens count as bytes.

    model: the model that is trained on the ids.
    tokenizer: as for `text_tokenizer`; "bytes" says that each id is a byte.

    Errors: the errors of `text_tokenizer`.
    """
    if tokenizer is not None or _is_trained(model):
        return text_tokenizer(model, tokenizer)
    return None if getattr(model, "vocab", None) == BYTES else UnknownTokenizer()


def _is_trained(model: Model) -> bool:
    """Return True if the tokens of a model are settled; a training on batches records no length."""
    return model.trained_length is not None or own_tokenizer(model) is not None


def _hash(tokenizer: Tokenizer | None) -> str | None:
    return None if tokenizer is None else tokenizer.sha256
