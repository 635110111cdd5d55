"""Encoder: what models that read a whole row share: tokens embedded as BERT does it, and a body that reads them."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.core.checks import check_at_least, check_optional_part, check_part, check_probability
from kinformer.core.layer import Context, Layer
from kinformer.core.loss import Weight, check_known_penalties
from kinformer.core.model import Model
from kinformer.core.position import Position
from kinformer.core.vocabulary import check_tokens_below
from kinformer.nn.norms.layer import LayerNorm

START = 0.02  # the standard deviation of embeddings at the start, BERT's


class Encoder(Model):
    """Tokens in, vectors out. Beyond the `vocab` ids of tokens there is one more, `vocab` itself, the model's own.

    vocab: how many tokens there are; a byte model has 256.
    d: the width of the body.
    body: layers that read both ways.
    position: what is added to embedded tokens; None where the body knows positions itself.
    scale: the factor of embedded tokens.
    kinds: how many vectors there are to add, picked by the label "segment" [B T], 0 without it (BERT's two sentences).
    eps: of the norms.
    dropout: the share of embedded numbers that training drops.
    penalties: weights of the body's auxiliary losses, by the last part of their names.

    Errors: ValueError for a penalty that no part reports. Source: Devlin et al., 2018, arXiv:1810.04805.
    """

    def __init__(
        self,
        vocab: int,
        d: int,
        body: Layer,
        *,
        position: Position | None = None,
        scale: float = 1.0,
        kinds: int = 0,
        eps: float = 1e-12,
        dropout: float = 0.0,
        penalties: Mapping[str, Weight] | None = None,
    ):
        super().__init__()
        self.vocab, self.d, self.scale = check_at_least("vocab", vocab, 1), check_at_least("d", d, 1), scale
        self.dropout = check_probability("dropout", dropout)
        self.embedding = nn.Embedding(vocab + 1, d)
        nn.init.normal_(self.embedding.weight, std=START)
        self.position = check_optional_part("position", position, Position, "a position, such as Learned(d)")
        self.body = check_part("body", body, Layer, "a layer, such as Stack([...])")
        self.kind = nn.Embedding(kinds, d) if check_at_least("kinds", kinds, 0) else None
        if self.kind is not None:
            nn.init.normal_(self.kind.weight, std=START)
        self.norm = LayerNorm(d, eps=eps)
        self.refuse_unmet(body)
        self.penalties = check_known_penalties(penalties or {}, (body, position))

    def embed_tokens(self, tokens: Int[Tensor, "B T"], ctx: Context) -> Float[Tensor, "B T D"]:
        """What the body reads of tokens: their vectors, those of their positions and of their kinds, normed."""
        x = self.embedding(check_tokens_below(tokens, self.embedding.num_embeddings).clamp_min(0)) * self.scale
        if self.position is not None:
            x = x + self.position(ctx.position_ids)
        if self.kind is not None:
            zeros = torch.zeros_like(tokens)  # where there is one kind, the label says nothing to it
            label = ctx.labels.get("segment", zeros) if self.kind.num_embeddings > 1 else zeros
            x = x + self.kind(label.clamp_min(0))
        return F.dropout(self.norm(x), self.dropout, self.training)
