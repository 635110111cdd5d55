"""The forms that an attention is tried in: an encoder of hidden tokens, a decoder of text, or one with the other."""

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
    """A model of `depth` blocks on either side that it has.

    reads: makes block n, from the bottom, of an encoder.
    writes: makes block n of a decoder, which in an "encoder_decoder" reads the source too.

    Errors: ValueError for a form that is none, and for smoothing in one that has none.
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
