"""Seq2Seq: an encoder-decoder model that writes a target sequence for a source sequence."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

import kinformer as kf
from kinformer.core.batch import TokenBatch
from kinformer.core.checks import (
    check_at_least,
    check_in_range,
    check_optional_part,
    check_part,
    check_probability,
    check_whole_between,
)
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
from kinformer.core.memo import Memo
from kinformer.core.model import EvaluationSums, Metric, Writer, accuracy, random_tokens, sum_and_count
from kinformer.core.position import Position
from kinformer.core.state import share_positions
from kinformer.core.sublayer_names import add_prefix
from kinformer.core.token_positions import (
    NumberedState,
    context_of_tokens,
    continue_positions,
    next_positions,
    start_positions,
)
from kinformer.core.vocabulary import check_tokens_below
from kinformer.models.support.exit_losses import refuse_rules
from kinformer.models.support.halting_steps import halting_steps
from kinformer.models.support.sliding_reader import fit_to_window, read_in_windows
from kinformer.models.support.tied_head import tie_head

__all__ = ["Seq2Seq"]

Pair = tuple[Int[Tensor, "B S"], Int[Tensor, "B T"] | TokenBatch]


class Seq2Seq(Writer):
    """Encoder-decoder model for translation and other pairs of sequences.

    p(next token) = softmax(head(decoder(target tokens so far, encoder(source))))

    Choose it if inputs and outputs are separate sequences; choose `LM` for one text. Source, target and head share one
    embedding. Two ids follow `vocab`: `end`, which the model writes last, and `begin`, which it reads first and never
    writes, so logits have vocab + 1 entries. In published models, one or both are among the tokens. The loss is over
    the target's tokens and the end, each given the true tokens before it. If the target is a `TokenBatch` (tokens with
    marks) with scored tokens, the loss is over these and the end. -1 is padding, at the ends of a row only. A target
    without tokens has no loss.

    vocab: number of tokens.
    d: width of encoder and decoder.
    encoder: layers that read the source in both directions.
    decoder: causal layers; layers with `cross=True` read the encoder's output.
    position: position that is added to embedded tokens; None if the layers encode positions themselves.
    scale: factor of embedded tokens.
    tie: True shares the embedding's matrix with the head; False gives the head its own.
    std: standard deviation of the initial embedding; d**-0.5 by default, as in the authors' code.
    smoothing: label smoothing: part of a target's probability that the loss spreads evenly over all logits. The loss
        part "nll" is without it.
    dropout: dropout probability of the embedded tokens.
    begin, end: ids of the tokens that open and close a target, if they are among the tokens.
    first: id of a token that follows `begin` in every target, and is therefore not learned; None for none.
    head_bias: True gives the head a bias, which starts at 0.
    head_scale: factor of the decoder's output before the head.
    penalties: weights of auxiliary losses, keyed by the last part of their names.

    Errors: ValueError for a weight in `penalties` of a loss that no part reports, and for an `EarlyExit` with a
    trainable exit rule.
    Source: Vaswani et al., 2017, arXiv:1706.03762; label smoothing: Szegedy et al., 2015, arXiv:1512.00567.
    """

    reads: ClassVar[str] = "pairs"
    metric = Metric("bits per token", "bits")

    def __init__(
        self,
        vocab: int,
        d: int,
        encoder: Layer,
        decoder: Layer,
        *,
        position: Position | None = None,
        scale: float = 1.0,
        tie: bool = True,
        std: float | None = None,
        smoothing: float = 0.0,
        dropout: float = 0.0,
        begin: int | None = None,
        end: int | None = None,
        first: int | None = None,
        head_bias: bool = False,
        head_scale: float = 1.0,
        penalties: Mapping[str, Weight] | None = None,
    ):
        super().__init__()
        self.vocab = check_at_least("vocab", vocab, 1)
        rows = vocab + (end is None) + (begin is None)
        for name, token in (("begin", begin), ("end", end), ("first", first)):
            check_whole_between(name, 0 if token is None else token, 0, vocab - 1)
        self.end, self.begin, self.first = vocab if end is None else end, rows - 1 if begin is None else begin, first
        self.d, self.scale = check_at_least("d", d, 1), scale
        self.smoothing, self.dropout = check_probability("smoothing", smoothing), check_probability("dropout", dropout)
        self.embedding = nn.Embedding(rows, d)
        nn.init.normal_(self.embedding.weight, std=d**-0.5 if std is None else check_in_range("std", std, 0, math.inf))
        self.position = check_optional_part("position", position, Position, "a position, such as Sinusoidal(d)")
        self.encoder = check_part("encoder", encoder, Layer, "a layer, such as Stack([...])")
        self.decoder = check_part("decoder", decoder, Layer, "a layer, such as Stack([...])")
        self.head = TargetHead(d, rows, rows - (begin is None), bias=head_bias, scale=head_scale)
        if tie:
            tie_head(self)
        for part in (encoder, decoder):
            self.refuse_unmet(part)
            self.refuse_untrained(part)
        self.penalties = check_known_penalties(penalties or {}, (encoder, decoder, position))

    @property
    def opening(self) -> tuple[int, ...]:
        """Ids that the decoder reads before the first token of every target."""
        return (self.begin,) if self.first is None else (self.begin, self.first)

    def refuse_untrained(self, part: Layer) -> None:
        """Raise ValueError if an exit rule has parameters that this model's loss would not train.

        part: layers to check.
        """
        refuse_rules(self, part)

    def start(self, batch: int, length: int, *, dtype: Dtype = None, device: Device = None) -> NumberedState:
        """Return the decoding state before the first target token; the first call with it adds the source.

        length: expected number of target tokens.
        """
        new = make_state_spec(self, batch, length, dtype, device)
        now = torch.zeros(batch, dtype=torch.long, device=new.device)
        return share_positions(
            NumberedState(now, self.decoder.start(batch, length, dtype=new.dtype, device=new.device))
        )

    def encode(self, source: Int[Tensor, "B S"]) -> tuple[Out, Int[Tensor, "B S"]]:
        """Return the encoder's output and the positions of the source tokens.

        A `Context` holds them as `source` and `source_pos`, for calls of `logits`.

        source: source tokens; -1 is padding.
        """
        ctx = context_of_tokens(source)
        return self.encoder(self._embed(source, ctx.pos), None, ctx), ctx.pos

    def logits(
        self,
        tokens: Int[Tensor, "B T"],
        state: NumberedState | None = None,
        ctx: Context | None = None,
        *,
        source: Int[Tensor, "B S"] | None = None,
        last: bool = False,
    ) -> Out:
        """Return the logits of the target token after each token, or with `last` only after the last one.

        `tokens` starts with the ids of `opening`. Pass the source as tokens or, encoded, in `ctx`. Without a state,
        pass it in every call; with a state, only in the first call, because the state stores the keys and values of the
        source. If `ctx` is None, positions continue from the state. The output has the auxiliary values of the decoder
        only. The auxiliary values of the encoder belong to the source tokens, and enter the loss.
        """
        if source is not None:
            _, ctx = self._with_source(tokens, source, state, ctx)
        elif ctx is None:
            ctx = context_of_tokens(tokens, state)
        return self._decode(tokens, state, ctx, last)

    def forward(self, batch: Pair, state: NumberedState | None = None, progress: float = 0.0) -> Loss:
        read, targets = self.framed_targets(batch)
        source = batch[0]
        encoded, ctx = self._with_source(read, source, state, None)
        out, data, parts = self.training_loss(
            lambda taps: self._decode(read, state, ctx.replace(taps=taps)), targets, ctx, progress
        )
        sums = sum_over_layers(encoded.aux, source >= 0)
        for name, value in sum_over_layers(out.aux, read >= 0).items():
            sums[name] = sums[name] + value if name in sums else value
        stats = add_prefix("encoder", encoded.stats) | add_prefix("decoder", out.stats)
        return Loss(
            weighted_loss(data, sums, self.penalties, progress),
            {**parts, **sums},
            out.state,
            stats,
            torch.sum(targets >= 0),
        )

    def framed_targets(self, batch: Pair) -> tuple[Int[Tensor, "B _"], Int[Tensor, "B _"]]:
        """Return the decoder's input tokens for a batch, and the token to predict after each of them."""
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise TypeError(
                f"wrong batch for an encoder-decoder: got {type(batch).__name__}, expected one tuple of source [B, S] "
                "and target [B, T]. Write model((source, target))"
            )
        return self._frame(TokenBatch.from_tokens(batch[1]))[:2]

    def _frame(self, target: TokenBatch) -> tuple[Int[Tensor, "B _"], Int[Tensor, "B _"], Bool[Tensor, "B _"]]:
        """Return the decoder's input, the scored tokens and ends that it predicts, and a mask of the scored tokens."""
        read, targets = frame_target(target.tokens, self.opening, self.end)
        scored = target.tokens >= 0 if target.scored is None else target.scored
        scored = F.pad(scored, (len(self.opening) - 1, 1))
        return read, targets.where(scored | _last_mask(targets), -1), scored

    def training_loss(
        self, call: Callable[[tuple[str, ...]], Out], targets: Int[Tensor, "B T"], ctx: Context, progress: float
    ) -> tuple[Out, Tensor, dict[str, Tensor]]:
        """Return the output of one or more calls, the loss, and the parts of the loss.

        `call` takes the names of the hidden states (taps) that the loss needs, and returns the output with them.
        """
        out, real = call(()), targets >= 0
        nll = masked_mean(token_nll(out.y, targets), real)
        return (
            out,
            masked_mean(token_nll(out.y, targets, self.smoothing), real) if self.smoothing else nll,
            {"nll": nll},
        )

    def judge(self, batch: Pair, state: NumberedState | None = None) -> EvaluationSums:
        """Return the bits of the target tokens and ends, and the accuracy if the batch marks scored tokens."""
        source, target = batch
        target = fit_to_window(self, TokenBatch.from_tokens(target), len(self.opening), state)
        read, targets, scored = self._frame(target)
        out = read_in_windows(lambda window: self.logits(window, state, source=source), read, self.window, state)
        answers = {} if target.scored is None else accuracy(out.y, targets.where(scored, -1))
        return EvaluationSums({**answers, **self.metric_sums(out, targets)}, out.state)

    def metric_sums(self, out: Out, targets: Int[Tensor, "B T"]) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the metric over all targets, and the steps per token if the layers have adaptive depth.

        out: output of the model.
        targets: token to predict at each position; -1 for none.
        """
        bits = sum_and_count(token_nll(out.y, targets) / math.log(2), targets >= 0)
        return {type(self).metric.name: bits, **halting_steps(out, targets >= 0)}

    def sample(self, rows: int, length: int, seed: int) -> Pair:
        """Return random sources and targets of `length` tokens, to test the model with."""
        return random_tokens(self.vocab, rows, length, seed), random_tokens(self.vocab, rows, length, seed + 1)

    def inputs(self, batch: Pair) -> tuple[Int[Tensor, "B _"], Mapping[str, Tensor]]:
        source, target = batch
        return frame_target(TokenBatch.from_tokens(target).tokens, self.opening, self.end)[0], {"source": source}

    def _with_source(
        self, tokens: Int[Tensor, "B T"], source: Int[Tensor, "B S"], state: NumberedState | None, ctx: Context | None
    ) -> tuple[Out, Context]:
        """Return the encoder's output, and the context of the target that includes it."""
        memo = Memo() if ctx is None else ctx.memo
        if ctx is None and state is None:
            (source_pos, real), (pos, full) = start_positions(memo, source, tokens)
            ctx = Context(pos, run=True, full=full, memo=memo, is_clean=True)
        else:
            ((source_pos, real),) = start_positions(memo, source)
            if ctx is None:
                assert state is not None
                ctx = Context(continue_positions(tokens, state.now, memo), run=True, memo=memo, is_clean=True)
        context = Context(source_pos, run=True, full=real, memo=memo, is_clean=True)
        encoded = self.encoder(self._embed(source, source_pos), None, context)
        return encoded, ctx.replace(source=encoded.y, source_pos=source_pos, full=ctx.full and real)

    def _decode(self, tokens: Int[Tensor, "B T"], state: NumberedState | None, ctx: Context, last: bool = False) -> Out:
        ctx = self.context(ctx)
        out = self.decoder(self._embed(tokens, ctx.position_ids), None if state is None else state.body, ctx)
        ctx.memo.settle()
        if state is not None:
            out = out._replace(state=NumberedState(next_positions(state.now, ctx.pos), out.state))
        return out._replace(y=self.scores(out, last))

    def context(self, ctx: Context) -> Context:
        """Return the given context with the model's head, which decoder layers such as exits need."""
        return ctx.replace(head=self.head)

    def scores(self, out: Out, last: bool) -> Tensor:
        """Return the head's logits for all tokens of `out`, or only for the last one."""
        return self.head(out.y[:, -1:] if last else out.y)

    def _embed(self, tokens: Int[Tensor, "B T"], pos: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        x = self.embedding(check_tokens_below(tokens, self.embedding.num_embeddings).clamp_min(0)) * self.scale
        if self.position is not None:
            x = x + self.position(pos)
        return F.dropout(x, self.dropout, self.training)


class TargetHead(nn.Linear):
    """Output head for the first `written` ids. A last id that opens targets is read and never written.

    d: width of the decoder's output.
    rows: number of ids.
    written: number of ids that can be written.
    bias: whether there is a bias, which starts at 0.
    scale: factor of the decoder's output.
    """

    def __init__(self, d: int, rows: int, written: int, *, bias: bool = False, scale: float = 1.0):
        super().__init__(d, rows, bias=bias)
        self.written, self.scale = written, scale
        if bias:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*shape D"]) -> Float[Tensor, "*shape V"]:
        x = x if self.scale == 1 else x * self.scale
        return F.linear(x, self.weight[: self.written], None if self.bias is None else self.bias[: self.written])


def frame_target(
    target: Int[Tensor, "B T"], opening: Sequence[int], end: int
) -> tuple[Int[Tensor, "B _"], Int[Tensor, "B _"]]:
    """Return the decoder's input (`opening` and the target) and what it predicts (the target and `end`).

    target: target tokens; -1 is padding.
    opening, end: ids that open and close a target. The opening is not predicted.
    """
    read = target
    for token in reversed(opening):
        is_first = (read >= 0) & ((read >= 0).cumsum(1) == 1)
        read = torch.where(F.pad(is_first, (0, 1)), token, F.pad(read, (1, 0), value=-1))
    targets = torch.where(F.pad(_last_mask(target), (1, 0)), end, F.pad(target, (0, 1), value=-1))
    return read, F.pad(targets, (len(opening) - 1, 0), value=-1)


def _last_mask(tokens: Int[Tensor, "B T"]) -> Bool[Tensor, "B T"]:
    """Return a mask of the last token of each row that has one."""
    real = tokens >= 0
    return real & (real.flip(1).cumsum(1).flip(1) == 1)


def _example() -> Seq2Seq:
    encoder = kf.PreNorm(kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full())), kf.MLP(16))
    itself, source = kf.Softmax(kf.Causal()), kf.Softmax(kf.Full())
    decoder = kf.PreNorm(
        kf.Attention(kf.QKV(16, 2), itself), kf.Attention(kf.QKV(16, 2), source, cross=True), kf.MLP(16)
    )
    return Seq2Seq(11, 16, encoder, decoder, smoothing=0.1)


EXAMPLES = (_example,)
