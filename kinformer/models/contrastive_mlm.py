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
    """Masked language model that also learns a summary of each segment of a row by a contrastive loss.

    loss = (1 - contrast) * NLL + contrast * L_contrast

    Its body is a `GlobalTokens`: a stack with one global token for each segment. Choose it for long documents that
    consist of sentences or paragraphs; choose `MLM` for texts without such segments. Some segments are hidden
    completely, with the same probability as single tokens, and none of their tokens is predicted. The global token of a
    hidden segment sees the rest of its row. L_contrast compares it with the global tokens of all segments of the batch,
    each encoded in isolation. Each of the two encodings takes one pass. In the second, tokens attend only within their
    segment. The last global token stands for its segment and all later ones; they are never hidden if there are
    several. A row with a single segment hides none. The metric is the metric of `MLM`. With several processes, a
    segment is compared only with segments of its own process.

    contrast: weight of L_contrast, from 0 to 1.
    vocab, d, kwargs: arguments of `MLM`; its `segment`, which gives the segment of each token, is required.
    body: a `GlobalTokens`.

    Errors: ValueError for a body of another kind, and without `segment`.
    Source: Ainslie et al., 2020, arXiv:2004.08483, section 3.4.
    """

    body: GlobalTokens

    def __init__(self, vocab: int, d: int, body: Layer, *, contrast: float = 0.2, **kwargs: Any):
        check_part("body", body, GlobalTokens, "GlobalTokens(Stack(blocks), n)")
        super().__init__(vocab, d, body, **kwargs)
        if self.segment is None:
            raise ValueError(
                "a ContrastiveMLM hides whole segments of a row; pass segment=, which assigns tokens to segments"
            )
        self.contrastive, self.contrast = Contrastive(), check_in_range("contrast", contrast, 0, 1)

    def forward(self, batch: Tokens, state: State | None = None, progress: float | None = None) -> Loss:
        """Return the weighted sum of the loss of masked tokens and the contrastive loss.

        The contrastive loss is left out if the batch marks scored tokens or packs several documents in a row.
        """
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
        """Return a mask of completely hidden segments, and a mask of existing segments, for each row.

        A segment is hidden if `hide` chooses its first token. If `hide` chooses no first token of a segment in a row,
        the segment of the first chosen token is hidden.

        tokens: tokens of the rows; -1 is padding.
        segment: segment number of each token.
        fixed, seed: arguments of `hide`.
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
        predictable = ((number < n - 1) | (last < n)) & (last > 0)  # a lone segment has no context to predict it from
        return hidden & predictable, number <= last


def _example() -> ContrastiveMLM:
    body = GlobalTokens(kf.PostNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full()))), 6)
    return ContrastiveMLM(11, 16, body, segment=_pairs)


def _pairs(tokens: Int[Tensor, "B T"], _: object) -> Int[Tensor, "B T"]:
    """Return segments of two tokens each."""
    real = tokens >= 0
    return torch.where(real, (real.cumsum(1) - 1) // 2, -1)


EXAMPLES = (Example(_example, {"shard": "a segment is contrasted only with segments of rows on the same process"}),)
