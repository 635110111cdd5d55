"""LM: a decoder-only language model, which predicts each token from the tokens before it."""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.batch import TokenBatch
from kinformer.core.checks import check_at_least, check_in_range, check_optional_part, check_part, check_probability
from kinformer.core.eval_mode import evaluating
from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.layer import Context, Device, Dtype, Layer, Out, make_state_spec
from kinformer.core.loss import (
    Loss,
    Weight,
    check_known_penalties,
    masked_mean,
    sum_over_layers,
    token_nll,
    weighted_loss,
)
from kinformer.core.model import display_name
from kinformer.core.position import Position
from kinformer.core.state import share_positions
from kinformer.core.token_positions import NumberedState, context_of_tokens, next_positions
from kinformer.core.vocabulary import check_tokens_below
from kinformer.models.support.exit_losses import refuse_rules
from kinformer.models.support.text_model import TextModel, Tokens, next_tokens
from kinformer.models.support.tied_head import tie_head

TESTED = 24  # tokens of the rows that show whether the model reads ahead


class LM(TextModel):
    """Decoder-only language model: embedding, optional absolute position, causal body, head.

    p(next token) = softmax(head(body(scale * embedding + position)))

    Choose it to generate text and as the base of most causal members. Rows are integers [B T]; -1 is padding, at the
    ends of a row only, and never a target. If a `TokenBatch` (tokens with marks) marks scored tokens, only these are
    learned and evaluated.

    vocab: number of tokens; a byte model has 256.
    d: width of the body.
    body: causal layers.
    position: position that is added to embedded tokens; None if the body encodes positions itself.
    scale: factor of embedded tokens.
    tie: True shares the embedding's matrix with the head; False gives the head its own.
    std: standard deviation of the initial embedding. The default d**-0.5 gives the logits of a tied head unit variance.
        Use a smaller value for a body that passes the embedded token itself on to the head, as post-norm blocks do.
    dropout: dropout probability of the embedded tokens.
    penalties: weights of the body's auxiliary losses, keyed by the last part of their names.
    lanes: True trains on lanes (parallel pieces of one text, read from start to end) and carries the state from batch
        to batch. Use it for bodies with a memory, which would stay empty if rows were random windows of the text.

    Errors: ValueError for a weight in `penalties` of a loss that no part reports, and for a part that needs an input
    that no earlier part supplies. ValueError also for an `EarlyExit` with a trainable exit rule: `MultiExit` trains it.
    The first loss raises ValueError if a pattern lets a token read later tokens: such a model would learn to copy.
    Source: Radford et al., 2018,
    https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf.
    """

    def __init__(
        self,
        vocab: int,
        d: int,
        body: Layer,
        *,
        position: Position | None = None,
        scale: float = 1.0,
        tie: bool = True,
        std: float | None = None,
        dropout: float = 0.0,
        penalties: Mapping[str, Weight] | None = None,
        lanes: bool = False,
    ):
        super().__init__()
        self.vocab, self.d, self.scale = check_at_least("vocab", vocab, 1), check_at_least("d", d, 1), scale
        self.dropout, self.lanes = check_probability("dropout", dropout), lanes
        self.embedding = nn.Embedding(vocab, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5 if std is None else check_in_range("std", std, 0, math.inf))
        self.position = check_optional_part(
            "position", position, Position, "a position, such as Learned(d). Rotary belongs to QKV"
        )
        self.body = check_part("body", body, Layer, "a layer, such as Stack([PreNorm(Attention(...), MLP(d))])")
        self.head = nn.Linear(d, vocab, bias=False)
        if tie:
            tie_head(self)
        if body.d != d:
            raise ValueError(f"d={d}, but the body has width {body.d}; give both the same")
        self.refuse_unmet(body)
        self.refuse_untrained(body)
        self.penalties = check_known_penalties(penalties or {}, (body, position))
        self._is_tested = False  # becomes True at the first loss

    def refuse_untrained(self, body: Layer) -> None:
        """Raise ValueError if an exit rule has parameters that this model's loss would not train.

        body: layers to check.
        """
        refuse_rules(self, body)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NumberedState:
        """Return the decoding state before the first token, for rows of up to `length` tokens."""
        new = make_state_spec(self, batch, length, dtype, device)
        now = torch.zeros(batch, dtype=torch.long, device=new.device)
        return share_positions(NumberedState(now, self.body.start(batch, length, dtype=new.dtype, device=new.device)))

    def logits(
        self,
        tokens: Int[Tensor, "B T"],
        state: NumberedState | None = None,
        ctx: Context | None = None,
        *,
        last: bool = False,
    ) -> Out:
        """Return the logits of the token after each token, or with `last` only after the last one.

        If `ctx` is None, positions continue from the state.
        """
        out = self.hidden(tokens, state, ctx)
        return out._replace(y=self.scores(out, last))

    def hidden(self, tokens: Int[Tensor, "B T"], state: NumberedState | None = None, ctx: Context | None = None) -> Out:
        """Return the body's output for each token, before the head.

        If `ctx` is None, positions continue from the state.
        """
        ctx = self.context(context_of_tokens(tokens, state) if ctx is None else ctx)
        x = self.embedding(check_tokens_below(tokens, self.embedding.num_embeddings).clamp_min(0))
        x = x if self.scale == 1 else self.scale * x
        if self.position is not None:
            x = x + self.position(ctx.position_ids)
        out = self.body(F.dropout(x, self.dropout, self.training), None if state is None else state.body, ctx)
        ctx.memo.settle()
        if state is not None:
            out = out._replace(state=NumberedState(next_positions(state.now, ctx.pos), out.state))
        return out

    def context(self, ctx: Context) -> Context:
        """Return the given context with the model's head, which layers such as exits need."""
        return ctx.replace(head=self.head)

    def scores(self, out: Out, last: bool) -> Tensor:
        """Return the head's logits for all tokens of `out`, or only for the last one."""
        return self.head(out.y[:, -1:] if last else out.y)

    def forward(self, batch: Tokens, state: NumberedState | None = None, progress: float = 0.0) -> Loss:
        """Return the loss of predicting each token, or each scored token, from the tokens before it.

        The returned state ends before the last token, so the next chunk must begin with that token.
        """
        batch = TokenBatch.from_tokens(batch)
        if not (self._is_tested or torch.compiler.is_compiling()):
            self._refuse_pattern_ahead()
        check_tokens_below(batch.tokens[:, -1:], self.vocab)  # `logits` checks all others
        read, targets = batch.tokens[:, :-1], next_tokens(batch)
        ctx = batch.limit_context(context_of_tokens(read, state), -1, state)
        out, data, parts = self.training_loss(
            lambda taps: self.training_output(batch, state, ctx.replace(taps=taps)), targets, ctx, progress
        )
        # over all tokens that have a next token, scored or not; the last token of a row is not read
        sums = sum_over_layers(out.aux, next_tokens(batch._replace(scored=None)) >= 0)
        count = (targets >= 0).sum()
        return Loss(weighted_loss(data, sums, self.penalties, progress), {**parts, **sums}, out.state, out.stats, count)

    def _refuse_pattern_ahead(self) -> None:
        """Raise ValueError if a pattern allows later keys and a later token changes the output of an earlier one."""
        parts = (part for part in self.body.modules() if isinstance(part, KeyValueMechanism))
        pattern = next((part.pattern for part in parts if part.pattern.reach()[1] > 0), None)
        if pattern is not None:  # the layers may hide later keys, or a reach may be only a bound: compare two rows
            tokens = self.sample(1, min(self.longest or TESTED, TESTED), 0).to(self.embedding.weight.device)
            changed = torch.cat([tokens[:, :-1], (tokens[:, -1:] + 1) % self.vocab], 1)
            with evaluating(self), torch.random.fork_rng(devices=[]):
                y, other = (self.logits(row).y[:, :-1] for row in (tokens, changed))
            if not torch.allclose(y, other, rtol=1e-3, atol=1e-5, equal_nan=True):
                raise ValueError(
                    f"this {display_name(self)} reads ahead: got the pattern {pattern}, expected one without later "
                    f"tokens. Write Causal() & {pattern}, or train an MLM"
                )
        self._is_tested = True

    def training_output(self, batch: TokenBatch, state: NumberedState | None, ctx: Context) -> Out:
        """Return the logits that `forward` uses to compute the loss of a batch."""
        return self.logits(batch.tokens[:, :-1], state, ctx)

    def training_loss(
        self, call: Callable[[tuple[str, ...]], Out], targets: Int[Tensor, "B T"], ctx: Context, progress: float
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return the output of one or more calls, the loss, and the parts of the loss.

        `call` takes the names of the hidden states (taps) that the loss needs, and returns the output with them.
        """
        out = call(())
        nll = masked_mean(token_nll(out.y, targets), targets >= 0)
        return out, nll, {"nll": nll}


def _example() -> LM:
    blocks = [kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())), kf.MLP(16)) for _ in range(2)]
    return LM(11, 16, kf.Stack(blocks))


def _with_positions() -> LM:
    body = kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Causal())))
    return LM(11, 16, body, position=kf.Learned(16, 64), tie=False)


EXAMPLES = (_example, _with_positions)
