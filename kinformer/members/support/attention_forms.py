"""Model forms for an attention mechanism: masked encoder, causal decoder, or encoder with decoder."""

from collections.abc import Callable
from typing import Any, Literal

from kinformer.core.checks import check_at_least, check_option, check_unused
from kinformer.core.layer import Layer
from kinformer.members.support.wiring import Wiring
from kinformer.models.lm import LM
from kinformer.models.mlm import MLM
from kinformer.models.seq2seq import Seq2Seq

Form = Literal["decoder", "encoder", "encoder_decoder"]


def build_form(
    form: Form,
    wiring: Wiring,
    depth: int,
    vocab: int,
    *,
    reads: Callable[[int], Layer],
    writes: Callable[[int], Layer],
    smoothing: float = 0.0,
) -> LM | MLM | Seq2Seq:
    """Build a model of the given form with `depth` blocks in each of its stacks, for members with a form.

    form: "decoder" for an `LM`, "encoder" for an `MLM`, "encoder_decoder" for a `Seq2Seq`.
    wiring: positions, norms and dropout of the model.
    depth: number of blocks of each stack.
    vocab: vocabulary size, in tokens.
    reads: function that takes n and makes block n of an encoder, counted from 0 at the bottom.
    writes: function that makes block n of a decoder likewise; in an "encoder_decoder" the block also reads the source.
    smoothing: label smoothing of an "encoder_decoder".

    Errors: ValueError for an unknown form, and for smoothing in another form.
    """
    check_option("form", form, Form)
    numbers = range(check_at_least("depth", depth, 1))
    keywords: dict[str, Any] = {"position": wiring.added_position(), "scale": wiring.scale, "dropout": wiring.dropout}
    if form != "encoder_decoder":
        check_unused(f"form={form!r}", smoothing=(smoothing, 0.0))
    if form == "encoder":
        return MLM(vocab, wiring.d, wiring.stack(map(reads, numbers)), **keywords)
    decoder = wiring.stack(map(writes, numbers))
    if form == "decoder":
        return LM(vocab, wiring.d, decoder, std=wiring.start, **keywords)
    encoder = wiring.stack(map(reads, numbers))
    return Seq2Seq(vocab, wiring.d, encoder, decoder, std=wiring.start, smoothing=smoothing, **keywords)
