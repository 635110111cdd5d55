"""ContrastiveMLM: a masked language model that also learns summaries of sentences."""

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_in_range, check_part
from kinformer.core.example import Example
from kinformer.core.layer import Layer, State
from kinformer.core.loss import Loss, masked_mean, sum_over_layers, token_nll, weighted_loss
from kinformer.models.mlm import MLM, Tokens
from kinformer.nn.depth.global_tokens import GlobalTokens
from kinformer.nn.losses.contrastive import Contrastive


class ContrastiveMLM(MLM):
    """An `MLM` over `GlobalTokens`: loss = (1 - contrast) * NLL + contrast * L_contrast, the second of whole parts.

    Some parts, by chance as many as tokens, are wholly hidden, and none of their tokens is asked for. The global token
    of each, which sees the rest of the row, is held against those of all parts of the batch, each read by itself. Both
    are read in one pass each: by itself is a limit on who reads whom. The last global token stands for all parts that
    come after and is never hidden where it stands for several. It is judged as an MLM. In several processes a part is
    held against those of its own process's rows.

    contrast: the weight of L_contrast.

    kwargs: those of `MLM`, of which `segment` says what a part is. Errors: ValueError for a body of another kind, and
    without `segment`. Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.4.
    """

    body: GlobalTokens

    def __init__(self, vocab: int, d: int, body: Layer, *, contrast: float = 0.2, **kwargs: Any):
        check_part("body", body, GlobalTokens, "GlobalTokens(Stack(blocks), n)")
        super().__init__(vocab, d, body, **kwargs)
        if self.segment is None:
            raise ValueError("a ContrastiveMLM hides whole parts of a row; say by segment= which part a token is of")
        self.contrastive, self.contrast = Contrastive(), check_in_range("contrast", contrast, 0, 1)

    def forward(self, batch: Tokens, state: State | None = None, progress: float | None = None) -> Loss:
        """Both losses; that of an MLM alone where the batch says what is scored, or has several documents in a row."""
        batch = TokenBatch.from_tokens(batch)
        if batch.scored is not None or batch.documents is not None:
            return super().forward(batch, state, progress)
        tokens, body = batch.tokens, self.body
        fixed, seed = not self.training or progress is not None, int((progress or 0) * 2**52) if self.training else 0
        read, targets = self.hide(tokens, fixed=fixed, seed=seed)
        ctx = self.segment_context(tokens, tokens)
        segment = ctx.labels["segment"]
        hidden, is_part = self.parts(tokens, segment, fixed=fixed, seed=seed + 1)
        inside = F.pad(hidden, (0, 1)).gather(1, segment.clamp(0, body.n - 1).where(segment >= 0, body.n))
        read, targets = torch.where(inside, self.mask, read), targets.masked_fill(inside, -1)
        out = body.read_nodes_and_text(self.embed_tokens(read, ctx), body.node_context(ctx))
        alone = body.read_nodes_and_text(self.embed_tokens(tokens, ctx), body.separate_segments(ctx))
        value = self.contrastive(out.y[:, : body.n], alone.y[:, : body.n], hidden, is_part)
        logits = self.head(self.transform(out.y[:, body.n :]))[..., : self.vocab]
        nll = masked_mean(token_nll(logits, targets), targets >= 0)
        aux = {name: reported[:, body.n :] if reported.dim() else reported for name, reported in out.aux.items()}
        sums = {"contrast": value, **sum_over_layers(aux, tokens >= 0)}
        weights = {"contrast": self.contrast, **self.penalties}
        loss = weighted_loss((1 - self.contrast) * nll, sums, weights, progress or 0.0)
        return Loss(loss, {"nll": nll, **sums}, None, out.stats, (targets >= 0).sum())

    def parts(
        self, tokens: Int[Tensor, "B T"], segment: Int[Tensor, "B T"], *, fixed: bool, seed: int
    ) -> tuple[Bool[Tensor, "B n"], Bool[Tensor, "B n"]]:
        """Which parts of a row are wholly hidden, and which there are.

        Those whose first token `hide` chooses; where it chooses none of these, the part of the first that it chooses.
        """
        n, last = self.body.n, segment.amax(1, keepdim=True)
        first = segment != F.pad(segment, (1, 0), value=-1)[:, :-1]
        _, chosen = self.hide(tokens, fixed=fixed, seed=seed)
        picked = first & (chosen >= 0)
        earliest = (chosen >= 0) & ((chosen >= 0).cumsum(1) == 1)
        picked = torch.where(picked.any(1, keepdim=True), picked, earliest)
        marks = torch.where(picked & (segment < n), segment, n)
        hidden = torch.zeros(len(tokens), n + 1, dtype=torch.bool, device=tokens.device).scatter(1, marks, True)[:, :n]
        number = torch.arange(n, device=tokens.device)
        predictable = ((number < n - 1) | (last < n)) & (last > 0)  # and there is a context that could tell it
        return hidden & predictable, number <= last


def _example() -> ContrastiveMLM:
    body = GlobalTokens(kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full()))), 6)
    return ContrastiveMLM(11, 16, body, segment=_pairs)


def _pairs(tokens: Int[Tensor, "B T"], _: object) -> Int[Tensor, "B T"]:
    """Two tokens a part."""
    real = tokens >= 0
    return torch.where(real, (real.cumsum(1) - 1) // 2, -1)


EXAMPLES = (Example(_example, {"shard": "a part is held against those of the rows that one process has"}),)
