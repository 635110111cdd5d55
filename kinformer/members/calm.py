"""CALM: a decoder in which confident tokens leave early."""

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


@member(cost="L**2", needs={"length": "position=learned or temperature!=none", "frozen": "depth>1"})
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

    Choose it to generate easy tokens with fewer layers. A token leaves when its confidence reaches a threshold. All
    exits share one head, and all of them train, with the loss weights of `weights`. `kinformer calibrate`
    finds a threshold that keeps a promised quality.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    form: "decoder", or "encoder_decoder" for pairs.
    confidence: measure of confidence. "softmax_response" is the gap between the two largest probabilities. With
        "saturation" it is the cosine between the hidden states after this layer and after the layer before. With
        "probe" a learned linear classifier predicts whether the layer agrees with the last layer. The probe does not
        change the layers.
    threshold: confidence at which a token leaves, before any decay.
    temperature: speed at which the threshold falls while an output grows; higher falls faster. "paper" is 4, and 0 with
        "saturation". 0 is also the paper's value for short texts. None keeps `threshold` constant.
    decay: "paper" is equation 5; "code" is the form of the authors' code.
    strict: a token leaves when its confidence exceeds the threshold; if False, when it reaches the threshold.
    weights: loss weights of the exits: "linear", "sqrt" or "uniform".
    balance: give both classes of the probe ("agrees" and "does not agree") equal weight in its loss.
    frozen: train only the probe, as in the paper; `--from` supplies a trained calm.
    pattern: expression for the tokens that each token reads, such as "Causal()".
    position: position encoding, as in `gpt`.
    norm: "pre" or "post".
    length: longest row in tokens (learned positions), and the output length for the decay if the model knows no other.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    The threshold falls from the first token of an output to the largest number of tokens that the output may have. The
    length of a prompt does not matter. A text that is only read, as in `evaluate`, counts as an output of the length of
    a training row.

    Differences: the paper's model is a T5, an encoder and a decoder, as with form "encoder_decoder". The default has
    the layers of `gpt`.
    """
    sure: Confidence
    if check_option("confidence", confidence, Sure) == "probe":
        sure = Probe(d, balance=balance, depth=depth)
    else:
        sure = SoftmaxResponse() if confidence == "softmax_response" else Saturation()
    if confidence != "probe":
        check_unused(f"confidence={confidence!r}", balance=(balance, False), frozen=(frozen, False))
    if temperature is None:
        check_unused("temperature=None, a constant threshold", decay=(decay, "paper"))
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
