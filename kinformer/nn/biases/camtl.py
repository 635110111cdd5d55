"""CAMTL: learned blocks on the diagonal of the scores, scaled and shifted by each token's task."""

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

START = 0.02  # initial standard deviation of task embeddings, as in BERT


class ConditionalBlocks(Bias):
    """Base class of `CAMTL`: a learned block-diagonal matrix M(z), modulated by a task embedding z.

    M(z) is added to the scores of all heads. FiLM, a scale and a shift computed from z, modulates the blocks A_n on the
    diagonal. M is 0 between blocks. Subclasses implement `rows`.

    Each query has the number of its task as a label: `Context(labels={"task": ...})`. One batch can therefore hold rows
    of many tasks. The bias computes one row of M for each query, L / blocks numbers, once per attention call. It never
    builds the L x L matrix.

    tasks: number of tasks.
    d: width of a task embedding.
    length: largest number of positions, L; shorter sequences use the upper left corner of M.
    blocks: number of blocks on the diagonal. Each has ceil(L / blocks) positions; the last one has the rest.
    label: name of the entry in `ctx.labels` with the number of the task of each token.
    embedding: task embedding of another layer, to share it as the paper's model does. Its weight has shape [tasks, d].

    Errors: ValueError if the context has no such label for the queries, or if `embedding` has another shape; IndexError
    for a position beyond L or an unknown task. Source: Pilault et al., 2020, arXiv:2009.09139, section 2.2.
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
            "embedding", embedding, nn.Embedding, "the embedding of another layer, such as first.embedding"
        )
        if embedding.weight.shape != (tasks, d):
            raise ValueError(
                f"embedding has the wrong shape: got {list(embedding.weight.shape)}, expected [{tasks}, {d}]"
            )
        self.blocks = nn.Parameter(torch.zeros(length, self.size))  # as in the authors' code: M starts as beta

    @abstractmethod
    def rows(self, task: Int[Tensor, "B 1 T"], pos: Int[Tensor, "B #H T"]) -> Float[Tensor, "B #H T n"]:
        """Return for each query its row of the block on the diagonal, modulated by its task.

        task: number of the task of each query.
        pos: positions of the queries.
        """

    def prepare(self, request: Request) -> Mapping[str, Float[Tensor, "B H T n"]]:
        name, queries = type(self).__name__, request.queries
        if self.label not in queries.labels:
            raise ValueError(
                f"{name} reads the label {self.label!r} of queries, but the queries have none. Pass "
                f"Context(labels={{{self.label!r}: ...}}) with one number per token"
            )
        task = queries.labels[self.label]
        check_below(task, self.embedding.num_embeddings, "task", f"create {name} with more tasks")
        check_below(queries.pos, self.length, "position", f"create {name} with a larger length")
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
    """Block-diagonal task bias with one scale and one shift for each entry of a block.

    M(z) = (+)_n (A_n * gamma_n(z) + beta_n(z))

    Choose it over one model for each task if tasks share an encoder: each task changes which near tokens attend to each
    other in its own way. Here (+)_n puts blocks on the diagonal, and * multiplies entry by entry. The linear maps
    gamma_n and beta_n take the task embedding z to one number for each pair of positions in block n. They have 2 d L^2
    / blocks parameters. Initially gamma is near 1 and A is 0.

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
    """Block-diagonal task bias with one scale and one shift for each column of a block.

    M(z) = (+)_n (A_n * (1 + gamma(z)) + beta(z))

    Choose it over `CAMTL` to load the authors' weights, or if L is large. Here (+)_n puts blocks on the diagonal. The
    linear maps gamma and beta take the task embedding z to one number for each column of a block. All rows of all
    blocks share the two maps, which have 2 d L / blocks parameters.

    tasks, d, length, blocks, label, embedding: see `ConditionalBlocks`.

    Source: Pilault et al., 2020, arXiv:2009.09139, authors' code.
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
