"""The figure `camtl`: the path from a task to its prior, and the priors of two tasks."""

from collections.abc import Iterator

import torch
from torch import Tensor

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, of_most, shades

SIZE = 4  # tokens in a block


def draw() -> Iterator[Diagram | Picture]:
    """Yield the path from the task to the scores, and the prior and the weights of two tasks."""
    yield _path()
    prior, weights = tasks()
    level = of_most(prior)
    panels = [shades(f"task {n + 1}: M(z)", level[n], LABELS, LABELS) for n in (0, 1)]
    panels += [shades(f"task {n + 1}: weights", weights[n], LABELS, LABELS) for n in (0, 1)]
    note = "Blocks of 4 tokens. Task 1 prefers the previous token, and task 2 the first token of the block."
    yield Picture("prior of two tasks and their attention weights, with equal texts", (), tuple(panels), note=note)


def tasks() -> tuple[Tensor, Tensor]:
    """Return the prior M(z) of two tasks and their attention weights, [task, query, key]."""
    bias = kf.CAMTLByColumn(tasks=2, d=2, length=len(TOKENS), blocks=len(TOKENS) // SIZE)
    x = token_vectors().expand(2, 1, len(TOKENS), 2)
    ctx = kf.Context.of_sequence(torch.zeros(2, len(TOKENS), 1))
    pos, task = ctx.pos[:, None], torch.tensor([[0], [1]]).expand(2, len(TOKENS))
    values = torch.eye(len(TOKENS)).expand(2, 1, -1, -1)
    with torch.no_grad():
        bias.embedding.weight.copy_(torch.eye(2))
        bias.blocks.copy_(2 * torch.eye(SIZE).roll(-1, 1).tril(-1).repeat(2, 1))
        bias.gamma.weight.zero_()[:, 1] = -1.0
        bias.beta.weight.zero_()[0, 1] = 3.0
        queries = kf.Queries(2 * x, pos, labels={"task": task})
        out = kf.Softmax(kf.Full(), bias)(queries, kf.Keys(x, values, pos), None, ctx)
        rows = bias.rows(task[:, None], pos)[:, 0]  # [task, query, place in the block]
    same = torch.arange(len(TOKENS)) // SIZE
    prior = torch.where(same[:, None] == same, rows.repeat(1, 1, len(TOKENS) // SIZE), 0.0)
    return prior, out.y.y[:, 0]


def _path() -> Diagram:
    diagram = Diagram(
        "attention of an upper layer",
        kinds=("depends on the task", "shared by all tasks"),
        note="Lower layers have no prior. All heads of a layer add the same M(z).",
    )
    diagram.box(0, 4, 14, 3, "task z", 1)
    diagram.box(22, 1, 14, 3, "gamma(z)", 1)
    diagram.box(22, 7, 14, 3, "beta(z)", 1)
    diagram.box(22, 12, 14, 3, "blocks A_n", 2)
    diagram.box(43, 4, 26, 6, "A'_n = A_n * gamma\n+ beta,\non the diagonal of M(z)", 1)
    diagram.box(43, 12, 26, 3, "scores Q K^T / sqrt(d)", 2)
    diagram.box(74, 5, 5, 3, "+", 1)
    diagram.box(86, 5, 12, 3, "softmax", 1)
    diagram.arrow((13, 5), (17, 5), (17, 2), (21.4, 2), kind=1)
    diagram.arrow((17, 5), (17, 8), (21.4, 8), kind=1)
    diagram.arrow((35, 2), (40, 2), (40, 5), (42.4, 5), kind=1)
    diagram.arrow((35, 8), (42.4, 8), kind=1)
    diagram.arrow((35, 13), (40, 13), (40, 9), (42.4, 9), kind=2)
    diagram.arrow((68, 6), (73.4, 6), kind=1)
    diagram.arrow((68, 13), (76, 13), (76, 7.6), kind=2)
    diagram.arrow((78, 6), (85.4, 6), kind=1)
    return diagram
