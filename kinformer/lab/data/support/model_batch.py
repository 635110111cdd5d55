"""model_batch: a model's own batch from a batch of another library, such as transformers."""

from collections.abc import Mapping
from numbers import Number
from typing import Any

import torch
from torch import Tensor

from kinformer.core.batch import TokenBatch
from kinformer.core.quote import quote

IGNORED = -100  # the label of a token without a loss, in PyTorch and in transformers
TEXT = ("text", "masked")  # kinds of model input whose batch is a tensor of tokens
TOKEN_KINDS = (*TEXT, "pairs", "labelled")  # kinds of model input that are made of tokens
LABELS = ("target", "targets", "label_ids")  # names of labels in other libraries
# columns of transformers that would change the result, so that leaving them out would be wrong
CHANGING = ("position_ids", "token_type_ids", "inputs_embeds", "decoder_input_ids", "decoder_attention_mask")


def model_batch(batch: Any, reads: str) -> Any:
    """Return a batch in the form that a model reads.

    A batch that already has this form is returned unchanged. A dict has `input_ids`, and perhaps `attention_mask` and
    `labels`. Tokens without attention become padding (-1): they are not read and have no loss. A label of -100 has
    no loss. The labels of a language model are the tokens themselves, as in transformers. A masked model hides
    exactly the tokens that have a label. The labels of a model of pairs are the target. The labels of a classifier
    are one class for each row. Other columns are left out.

    A list or tuple of one tensor is that tensor. For a language model a pair of tensors is the input and the next
    tokens, and the targets -1 and -100 have no loss.

    batch: the batch.
    reads: the kind of data that the model reads (`Model.reads`), such as "text".

    Errors: ValueError, in one line, for a batch that the model cannot read without changing its meaning.
    """
    if isinstance(batch, Mapping):
        return _from_columns(batch, reads)
    first = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if reads in TOKEN_KINDS and (first is None or isinstance(first, str | bytes | Number)):
        raise ValueError(f"a batch must hold tensors, such as token ids [B, T]: got {quote(batch)}. Convert it")
    if not isinstance(batch, tuple | list) or hasattr(batch, "_fields"):
        return batch
    if len(batch) == 1:
        return batch[0]
    return _from_next_tokens(*batch) if reads == "text" and len(batch) == 2 else tuple(batch)


def _from_columns(columns: Mapping[str, Any], reads: str) -> Any:
    """Return the batch of named columns."""
    if reads not in TOKEN_KINDS:
        raise ValueError(f"the batch has the columns {_list(columns)}, but this model reads {reads} and no tokens")
    if "input_ids" not in columns:
        raise ValueError(f"the batch has no input_ids: got the columns {_list(columns)}; name the tokens input_ids")
    for name in CHANGING:
        if (column := columns.get(name)) is not None and not _has_no_effect(name, _as_tensor(name, column)):
            raise ValueError(f"the batch has {name}, which this model does not read; leave the column out")
    tokens = _rows("input_ids", columns["input_ids"])
    if (mask := columns.get("attention_mask")) is not None:
        mask = _rows("attention_mask", mask)
        _check_shape("attention_mask", mask, tokens)
        tokens = torch.where(mask != 0, tokens, -1)
    if other := next((name for name in LABELS if name in columns), None):
        raise ValueError(f"the batch has a column {other}, which is not read; name the labels labels, or leave it out")
    names = ("labels", "label") if reads == "labelled" else ("labels",)  # the class of a row is no label of its tokens
    labels = next((columns[name] for name in names if columns.get(name) is not None), None)
    if labels is None:
        if reads in TEXT:
            return tokens
        raise ValueError(
            f"the batch has no labels: got the columns {_list(columns)}, but a model of {reads} needs them"
        )
    if reads == "labelled":
        return tokens, _classes(_as_tensor("labels", labels), tokens)
    labels = _rows("labels", labels)
    _refuse_negative(labels)
    if reads == "pairs":
        return tokens, torch.where(labels == IGNORED, -1, labels)
    _check_shape("labels", labels, tokens)
    return _with_labels(tokens, labels, reads)


def _with_labels(tokens: Tensor, labels: Tensor, reads: str) -> Tensor | TokenBatch:
    """Return tokens in which those with a label are scored."""
    scored = (labels != IGNORED) & (tokens >= 0)
    if reads == "masked":
        return TokenBatch(torch.where(scored, labels, tokens), scored)
    if bool((labels != tokens)[scored].any()):
        shifted = labels.shape[1] > 1 and bool((labels[:, :-1] == tokens[:, 1:])[scored[:, :-1]].all())
        got = "the next tokens" if shifted else "other tokens"
        advice = (
            "Pass labels=input_ids, because the model shifts them by one token itself"
            if shifted
            else "A collator needs mlm=False; mlm=True is for masked models such as bert"
        )
        raise ValueError(f"labels of a language model must be its input_ids, or -100: got {got}. {advice}")
    # the first token of a row has no loss anyway
    return tokens if torch.equal(scored[:, 1:], tokens[:, 1:] >= 0) else TokenBatch(tokens, scored)


def _from_next_tokens(tokens: Any, following: Any) -> Tensor | TokenBatch:
    """Return the rows of a pair (tokens, next tokens)."""
    if not isinstance(tokens, Tensor) or not isinstance(following, Tensor) or following.shape != tokens.shape:
        raise ValueError("a pair of a language model's batch must be tokens and next tokens [B, T] of equal shape")
    if following.dtype == torch.bool:
        return torch.where(following, tokens, -1)
    known = following >= 0
    if bool((tokens[:, 1:] != following[:, :-1])[known[:, :-1]].any()):
        raise ValueError(
            "a pair of a language model's batch must be tokens and next tokens: got a second tensor that is not the "
            "first one shifted by one. Pass only the tokens, or a dict with input_ids and labels"
        )
    rows = torch.cat([tokens, torch.where(known[:, -1:], following[:, -1:], 0)], 1)
    scored = torch.cat([torch.ones_like(known[:, :1]), known], 1)
    return rows if bool(known.all()) else TokenBatch(rows, scored)


def _has_no_effect(name: str, column: Tensor) -> bool:
    """Return True if a column says what the model assumes without it."""
    if name == "token_type_ids":
        return not bool(column.any())
    return name == "position_ids" and torch.equal(column, torch.arange(column.shape[-1]).expand_as(column))


def _rows(name: str, value: Any) -> Tensor:
    """Return a column as rows of integers [B, T]."""
    if isinstance(value, list | tuple) and any(isinstance(part, Tensor) for part in value):
        raise ValueError(
            f"{name} is a list of tensors, one for each position. Call dataset.set_format('torch') before the "
            "DataLoader, or use a collator that pads"
        )
    rows = _as_tensor(name, value)
    if rows.dim() != 2 or rows.is_floating_point():
        raise ValueError(f"{name} must be integers [B, T], got {rows.dtype} of shape {list(rows.shape)}")
    return rows.long()


def _as_tensor(name: str, value: Any) -> Tensor:
    try:
        return torch.as_tensor(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{name} must be numbers, in rows of one length: got {quote(value)}. Pad the rows") from error


def _classes(labels: Tensor, tokens: Tensor) -> Tensor:
    """Return the class of each row, after a check."""
    if labels.dim() != 1 or len(labels) != len(tokens) or labels.is_floating_point():
        raise ValueError(
            f"the labels of a classifier must be one whole number for each of {len(tokens)} rows, got {labels.dtype} "
            f"of shape {list(labels.shape)}"
        )
    _refuse_negative(labels)
    return labels.long()


def _refuse_negative(labels: Tensor) -> None:
    if (wrong := labels[(labels < 0) & (labels != IGNORED)]).numel():
        raise ValueError(f"the labels hold {int(wrong[0])}, expected 0 or more, or {IGNORED} for no loss. Replace it")


def _check_shape(name: str, column: Tensor, tokens: Tensor) -> None:
    if column.shape != tokens.shape:
        raise ValueError(f"{name} has shape {list(column.shape)}, but input_ids have {list(tokens.shape)}")


def _list(columns: Mapping[str, Any]) -> str:
    return ", ".join(map(str, columns))[:160] or "nothing"
