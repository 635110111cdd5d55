"""CALM: a decoder whose sure tokens leave early."""

from typing import Literal

from kinformer.core.checks import check_flag, check_option, check_unused
from kinformer.core.discover import member
from kinformer.members.support.early_exit import Form, early_exit
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.multi_exit import MultiExit
from kinformer.models.multi_exit_seq2seq import MultiExitSeq2Seq
from kinformer.nn.exits.confidence import Confidence, Probe, Saturation, SoftmaxResponse
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.decaying_threshold import DecayingThreshold
from kinformer.nn.losses.aligned_exits import Weights

Sure = Literal["softmax_response", "saturation", "probe"]
Paper = Literal["paper"]


@member(needs={"length": "position=learned or temperature!=none", "frozen": "depth>1"})
def calm(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    form: Form = "decoder",
    confidence: Sure = "softmax_response",
    threshold: float = 0.9,
    temperature: float | Paper | None = "paper",
    decay: Literal["paper", "code"] = "paper",
    strict: bool = False,
    weights: Weights = "linear",
    balance: bool = False,
    frozen: bool = False,
    pattern: str = "Causal()",
    position: Positions = "learned",
    norm: Norms = "pre",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MultiExit | MultiExitSeq2Seq:
    """Confident adaptive language modelling (Schuster et al., 2022, arXiv:2207.07061), as a decoder.

    Choose it to write easy tokens with fewer layers. A token leaves once its `confidence` reaches the `threshold`
    (`strict`: exceeds): the gap of its two largest probabilities, the cosine to the layer before, or a probe that
    learns to tell (`balance`: both of its classes alike), beside the layers, none of which it changes, or as in the
    paper after them: `frozen`, it alone learns over what `--from` a trained calm brings. The threshold falls while an
    output is written, from its first token to the largest number of tokens that it may have; the length of a prompt
    changes nothing. It falls by equation 5 or as the authors' code does, and faster for a higher `temperature`: "paper"
    is 4, and with saturation 0; 0 is also the paper's of short texts; None keeps the `threshold` as it is. A text that
    is read, as `evaluate` does, counts as an output as long as a row of the training. All exits have
    one head and learn, weighted by their number. `kinformer calibrate` finds a threshold that keeps what is promised.
    The paper's own model is a T5, an encoder and a decoder: `form` "encoder_decoder" reads pairs; the default is a
    `gpt`, whose keywords the others are.
    """
    sure: Confidence
    if check_option("confidence", confidence, Sure) == "probe":
        sure = Probe(d, balance=balance, depth=depth)
    else:
        sure = SoftmaxResponse() if confidence == "softmax_response" else Saturation()
    if confidence != "probe":
        check_unused(f"confidence={confidence!r}", balance=(balance, False), frozen=(frozen, False))
    if temperature is None:
        check_unused("a threshold that does not fall, temperature=None", decay=(decay, "paper"))
    if temperature == "paper":
        temperature = 0.0 if confidence == "saturation" else 4.0
    falls = threshold if temperature is None else DecayingThreshold(threshold, length, temperature, decay)
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)
    rule = ConfidenceThreshold(sure, falls, strict=strict)
    model = early_exit(wiring, form, depth, pattern, rule, vocab=vocab, weights=weights)
    if check_flag("frozen", frozen):
        model.requires_grad_(False)
        sure.requires_grad_(True)
    return model


EXAMPLES = (
    lambda: calm(d=16, depth=3, heads=2, threshold=0.1, temperature=None, length=64, vocab=11),
    lambda: calm(d=16, depth=3, heads=2, confidence="probe", threshold=0.5, length=64, vocab=11),
    lambda: calm(d=16, depth=3, heads=2, form="encoder_decoder", threshold=0.05, length=64, vocab=11),
    lambda: calm(
        d=16,
        depth=3,
        heads=2,
        confidence="saturation",
        threshold=0.9,
        temperature=2.0,
        decay="code",
        strict=True,
        weights="sqrt",
        pattern="Causal() & Band(9)",
        position="rotary",
        norm="post",
        length=64,
        vocab=11,
    ),
    lambda: calm(
        d=16,
        depth=3,
        heads=2,
        confidence="probe",
        balance=True,
        frozen=True,
        threshold=0.5,
        weights="uniform",
        position="alibi",
        length=64,
        vocab=11,
    ),
)
