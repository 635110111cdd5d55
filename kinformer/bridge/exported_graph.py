"""Graphs of torch.export: a model as one graph of tokens to logits, for any batch and any length."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.export import Dim

from kinformer.core.eval_mode import evaluating
from kinformer.core.model import display_name, random_tokens
from kinformer.core.quote import shorten

ROWS, TOKENS = 3, 48  # shape of the tokens that the model is traced with
SHORTEST = 3  # tokens of the shortest row: the tracer of PyTorch takes smaller sizes for constants
CHECKED = ((1, 7), (2, 29))  # shapes of the tokens on which the graph is compared with the model
CLOSE = 1e-3  # largest difference from the model, relative to its largest logit


class TokensToLogits(nn.Module):
    """The computation of a graph: from tokens [B, T], with -1 at padding, to logits [B, T, V].

    model: the model.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        return self.model.logits(tokens).y


def export_program(model: Any) -> torch.export.ExportedProgram:
    """Return the graph of a model for any number of rows and any length, without a cache.

    Choose it to run a model where kinformer cannot be installed, or in C++. For Python code with transformers, choose
    `save(model, folder, format="hf")`, whose models also generate with a cache and can be trained.

    The graph holds only operators of PyTorch, so it runs without kinformer. Attention is computed by PyTorch's
    attention function with a mask, or densely; linear attention weighs all pairs of tokens.

    model: a language model, such as gpt, or a masked language model, such as bert.

    Errors: ValueError, in one line, for other models, and if PyTorch finds no graph that serves all shapes.
    """
    name = display_name(model)
    if getattr(model, "reads", None) not in ("text", "masked"):
        raise ValueError(
            f"cannot export a graph: got {name}, expected a language model or a masked language model, such as gpt or "
            "bert"
        )
    limit = {} if model.longest is None else {"max": model.longest}
    tokens = random_tokens(model.vocab, ROWS, min(TOKENS, model.longest or TOKENS), 0)
    shapes = {"tokens": {0: Dim("batch", min=1), 1: Dim("length", min=SHORTEST, **limit)}}
    with evaluating(model), torch.no_grad(), _quiet():
        try:
            program = torch.export.export(TokensToLogits(model), (tokens,), dynamic_shapes=shapes, strict=True)
        except Exception as error:  # the tracer raises errors of many kinds
            raise ValueError(
                f"cannot export the graph of {name}: PyTorch finds no graph for all shapes: {_reason(error)}. "
                "`kinformer export` with --format hf writes the model for transformers"
            ) from error
        _refuse_other_results(model, program, name)
    return program


def program_bytes(program: torch.export.ExportedProgram) -> bytes:
    """Return the content of a .pt2 file, which torch.export.load reads.

    program: the graph of a model.
    """
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    return buffer.getvalue()


def _refuse_other_results(model: Any, program: torch.export.ExportedProgram, name: str) -> None:
    """Refuse a graph that differs from the model at other shapes, because the tracer fixed what depends on them."""
    graph = program.module()
    for rows, length in CHECKED:
        tokens = random_tokens(model.vocab, rows, min(length, model.longest or length), 1)
        tokens[-1, -2:] = -1
        expected, actual = (call(tokens)[tokens >= 0] for call in (lambda x: model.logits(x).y, graph))
        error = float((actual - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
        if not error <= CLOSE:
            raise ValueError(
                f"cannot export the graph of {name}: with {rows} rows of {length} tokens, its logits differ from the "
                f"model's by {error:.0e} of the largest, expected at most {CLOSE:.0e}"
            )


def _reason(error: Exception) -> str:
    """The first lines of an error of PyTorch, as one short line."""
    lines = [line.strip(" -") for line in str(error).splitlines() if line.strip()]
    return shorten(" ".join(lines[:2]), 300)


@contextmanager
def _quiet() -> Iterator[None]:
    """Enter a context in which the tracer neither logs nor warns; its errors are raised."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
