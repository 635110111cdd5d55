"""CAMTL: blocks along the diagonal of the scores, learned, and modulated by what task a row is of."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from kinformer.core.bias import Bias, ScoreFn, at, entry
from kinformer.core.checks import check_at_least, check_part, check_whole_between
from kinformer.core.request import Request
from kinformer.core.vocabulary import check_below

START = 0.02  # the standard deviation of task embeddings at the start, BERT's


class ConditionalBlocks(Bias):
    """Adds M(z) to the scores of all heads: blocks A_n on the diagonal, changed by FiLM of the task embedding z.

    M is 0 between blocks. The task of a query is its label, `Context(labels={"task": ..})`, so rows of many tasks stand
    in one batch. A row of M is made for each query, L / blocks numbers, before a read is cut: never L x L.

    tasks: how many there are.
    d: the width of a task embedding.
    length: L, the most positions; shorter rows read the upper left corner of M.
    blocks: blocks on the diagonal, each of ceil(L / blocks) positions, the last one of what is left.
    label: what names the task of a token.
    embedding: the task embeddings of another layer, to share them as the paper's model does.

    Errors: ValueError where queries have no such label; IndexError for a position beyond L, and for a task that there
    is not. Source: Pilault et al., 2020, arXiv:2009.09139, section 2.2.
    """

    joins: ClassVar[bool] = True

    def __init__(
        self,
        tasks: int,
        d: int,
        length: int,
        blocks: int,
        *,
        label: str = "task",
        embedding: nn.Embedding | None = None,
    ):
        super().__init__()
        self.length, self.label = check_at_least("length", length, 1), label
        self.size = -(-length // check_whole_between("blocks", blocks, 1, length))
        if embedding is None:
            embedding = nn.Embedding(check_at_least("tasks", tasks, 1), check_at_least("d", d, 1))
            nn.init.normal_(embedding.weight, std=START)
        self.embedding = check_part(
            "embedding", embedding, nn.Embedding, "that of another layer, such as first.embedding"
        )
        if embedding.weight.shape != (tasks, d):
            raise ValueError(f"embedding has shape {list(embedding.weight.shape)}; give one of [{tasks}, {d}]")
        self.blocks = nn.Parameter(torch.zeros(length, self.size))  # as in the code: M begins as beta alone

    @abstractmethod
    def rows(self, task: Int[Tensor, "B 1 T"], pos: Int[Tensor, "B #H T"]) -> Float[Tensor, "B #H T n"]:
        """Of each query its row of its block, for its task."""

    def prepare(self, request: Request) -> Mapping[str, Float[Tensor, "B H T n"]]:
        name, queries = type(self).__name__, request.queries
        if self.label not in queries.labels:
            raise ValueError(
                f"{name} reads the label {self.label!r} of queries, and they have none; "
                f"give Context(labels={{{self.label!r}: ...}}), a number for each token"
            )
        task = queries.labels[self.label]
        check_below(task, self.embedding.num_embeddings, "task", f"give {name} more tasks")
        check_below(queries.pos, self.length, "position", f"give {name} a larger length")
        rows = self.rows(task.clamp_min(0)[:, None], queries.pos.clamp_min(0))
        return {"blocks": rows.expand(-1, queries.q.shape[1], -1, -1)}

    def bind(self, piece: Request) -> ScoreFn:
        q_pos, k_pos, rows = piece.queries.pos, piece.keys.pos, piece.queries.extras["blocks"]

        def score(s: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            k = at(k_pos, b, h, j)
            same = at(q_pos, b, h, i) // self.size == k // self.size
            return s + torch.where(same, entry(rows, b, h, i, k % self.size), 0.0)

        return score


class CAMTL(ConditionalBlocks):
    """M(z) = (+)_n (A_n * gamma_n(z) + beta_n(z)), gamma_n and beta_n maps of z to a number for each pair of block n.

    Choose it over a model for each task where tasks share an encoder: each shifts attention among near tokens in its
    own way. It has 2 d L^2 / blocks numbers. gamma begins near 1 and A at 0.

    tasks, d, length, blocks, label, embedding: see `ConditionalBlocks`.

    Source: Pilault et al., 2020, arXiv:2009.09139, section 2.2.
    """

    def __init__(self, tasks: int, d: int, length: int, blocks: int, **settings: Any):
        super().__init__(tasks, d, length, blocks, **settings)
        self.gamma, self.beta = (nn.Linear(d, self.blocks.numel()) for _ in range(2))
        nn.init.ones_(self.gamma.bias)
        nn.init.zeros_(self.beta.bias)

    def rows(self, task: Int[Tensor, "B 1 T"], pos: Int[Tensor, "B #H T"]) -> Float[Tensor, "B #H T n"]:
        gamma, beta = (film(self.embedding.weight).unflatten(-1, (-1, self.size)) for film in (self.gamma, self.beta))
        return (self.blocks * gamma + beta)[task, pos]  # [tasks L n]


class CAMTLByColumn(ConditionalBlocks):
    """M(z) = (+)_n (A_n * (1 + gamma(z)) + beta(z)), gamma and beta maps of z to a number for each column of a block.

    Choose it over `CAMTL` to use the authors' weights, and where L is long: all rows of all blocks share the two maps,
    which have 2 d L / blocks numbers. It is the form of the authors' code.

    tasks, d, length, blocks, label, embedding: see `ConditionalBlocks`.

    Source: Pilault et al., 2020, arXiv:2009.09139, as its code has it.
    """

    def __init__(self, tasks: int, d: int, length: int, blocks: int, **settings: Any):
        super().__init__(tasks, d, length, blocks, **settings)
        self.gamma, self.beta = (nn.Linear(d, self.size) for _ in range(2))
        for film in (self.gamma, self.beta):
            nn.init.zeros_(film.bias)

    def rows(self, task: Int[Tensor, "B 1 T"], pos: Int[Tensor, "B #H T"]) -> Float[Tensor, "B #H T n"]:
        gamma, beta = (film(self.embedding.weight)[task] for film in (self.gamma, self.beta))
        return self.blocks[pos] * (1 + gamma) + beta


EXAMPLES = (lambda: CAMTL(2, 6, 64, 8, label="segment"), lambda: CAMTLByColumn(2, 6, 64, 9, label="segment"))
