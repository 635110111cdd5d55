"""Encoder: base class of models that read a whole row, with BERT's embedding of tokens and a body."""

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

START = 0.02  # standard deviation of initial embeddings, as in BERT


class Encoder(Model):
    """Base class of bidirectional encoders: embeds tokens as BERT does and passes them to a body.

    The embedding has `extra` more ids than there are tokens, from `vocab` on, which a subclass can use, such as for
    masked tokens.

    vocab: number of tokens; a byte model has 256.
    d: width of the body.
    body: layers that read in both directions.
    position: position that is added to embedded tokens; None if the body encodes positions itself.
    scale: factor of embedded tokens.
    kinds: number of segment types (BERT's two sentences). Each token gets the vector of its type, which the label
        "segment" [B T] gives; without the label, all tokens get vector 0.
    eps: epsilon of the norms.
    dropout: dropout probability of the embedded tokens.
    penalties: weights of the body's auxiliary losses, keyed by the last part of their names.
    extra: number of ids after the tokens.

    Errors: ValueError for a weight in `penalties` of a loss that no part reports.
    Source: Devlin et al., 2018, arXiv:1810.04805.
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
        extra: int = 1,
    ):
        super().__init__()
        self.vocab, self.d, self.scale = check_at_least("vocab", vocab, 1), check_at_least("d", d, 1), scale
        self.dropout = check_probability("dropout", dropout)
        self.embedding = nn.Embedding(vocab + check_at_least("extra", extra, 0), d)
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
        """Return the body's input: the normalised sum of the vectors of tokens, positions and segment types.

        tokens: rows of tokens; -1 is padding.
        ctx: context of the tokens.
        """
        x = self.embedding(check_tokens_below(tokens, self.embedding.num_embeddings).clamp_min(0)) * self.scale
        if self.position is not None:
            x = x + self.position(ctx.position_ids)
        if self.kind is not None:
            zeros = torch.zeros_like(tokens)  # with one kind, the label is ignored
            label = ctx.labels.get("segment", zeros) if self.kind.num_embeddings > 1 else zeros
            x = x + self.kind(label.clamp_min(0))
        return F.dropout(self.norm(x), self.dropout, self.training)
