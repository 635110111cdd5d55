"""Depth-adaptive Transformer: a decoder that chooses the number of layers for each token."""

from typing import Literal

from kinformer.core.checks import check_option, check_unused
from kinformer.core.discover import member
from kinformer.core.example import Example
from kinformer.members.support.early_exit import Form, early_exit
from kinformer.members.support.wiring import Norms, Positions, Wiring
from kinformer.models.multi_exit import MultiExit
from kinformer.models.multi_exit_seq2seq import MultiExitSeq2Seq
from kinformer.models.support.exit_losses import Outputs
from kinformer.nn.exits.by_sequence import BySequence
from kinformer.nn.exits.confidence import SoftmaxProbability
from kinformer.nn.exits.confidence_threshold import ConfidenceThreshold
from kinformer.nn.exits.exit_rule import ExitRule
from kinformer.nn.exits.geometric import Geometric
from kinformer.nn.exits.multinomial import Multinomial
from kinformer.nn.losses.aligned_exits import Weights
from kinformer.nn.losses.exit_oracles import Correctness, Likelihood

Classifier = Literal["multinomial", "geometric", "sequence", "probability"]
Oracle = Literal["likelihood", "correctness"]


@member(
    cost="L**2",
    needs={"length": "position=learned", "price, sigma": "classifier!=probability and depth>1", "gamma": "depth>1"},
)
def depth_adaptive(
    d: int = 128,
    depth: int = 5,
    heads: int = 4,
    head_dim: int | None = None,
    form: Form = "decoder",
    classifier: Classifier = "multinomial",
    oracle: Oracle = "likelihood",
    price: float = 0.01,
    sigma: float = 0.0,
    alpha: float = 1.0,
    threshold: float | tuple[float, ...] = 0.5,
    shared: bool = True,
    weights: Weights = "uniform",
    paths: int = 0,
    gamma: float | None = None,
    outputs: Outputs = "shared",
    pattern: str = "Causal()",
    position: Positions = "learned",
    norm: Norms = "pre",
    length: int = 1024,
    vocab: int = 256,
    dropout: float = 0.0,
) -> MultiExit | MultiExitSeq2Seq:
    """Depth-adaptive Transformer (Elbayad et al., 2019, arXiv:1910.10073), as a decoder.

    Choose it if the network itself should decide how many layers a token needs. All exits are trained. `kinformer
    calibrate --search` finds a threshold for each layer.

    d: model width.
    depth: number of layers.
    heads: number of attention heads.
    head_dim: width of a head; d / heads if None.
    form: "decoder", or "encoder_decoder" for pairs.
    classifier: rule that decides the exit. With "multinomial" it predicts an exit after the first layer. With
        "geometric" it decides after each layer whether to stop. With "sequence" it predicts one exit for a whole row
        from the mean of the encoder's output, and needs form "encoder_decoder". With "probability" a token leaves when
        its largest probability reaches the threshold; this rule learns nothing.
    oracle: rule that gives the best exit of a token, the target of the classifier. With "likelihood" it is the exit
        with the largest log-probability of the correct token minus `price` for each layer. With "correctness" a correct
        prediction counts 1 in place of the log-probability.
    price: cost of a layer in the oracle; for "sequence" it is subtracted from the sum over the tokens of a row.
    sigma: width of the window in which the oracle also counts neighbouring tokens, in squared tokens; 0 counts only the
        token.
    alpha: loss weight of the classifier.
    threshold: probability at which a token leaves ("geometric", "probability"); one number, or one for each layer
        except the last.
    shared: use one stopping unit for all layers ("geometric").
    weights: loss weights of the exits: "uniform", "linear" or "sqrt".
    paths: number of forward passes with random exits per batch ("mixed training"), 1 to 6 in the paper. The classifier
        still learns from a pass in which no token leaves. With 0 the exits also learn from such a pass.
    gamma: scale of gradients: each layer n before the last, N, multiplies the gradient of its own exit by
        gamma (N - n). None leaves gradients unscaled.
    outputs: "shared" uses one output head; "each" gives every exit its own.
    pattern: expression for the tokens that each token reads, such as "Causal()".
    position: position encoding, as in `gpt`.
    norm: "pre" or "post".
    length: longest row in tokens (learned positions).
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings, attention weights and sublayer outputs.

    Differences: the paper's model translates, with form "encoder_decoder", norm "post" and position "sinusoidal". The
    default has the layers of `gpt`.
    """
    if paths:
        check_unused(f"paths={paths}", weights=(weights, "uniform"), gamma=(gamma, None))
    named = (Likelihood if check_option("oracle", oracle, Oracle) == "likelihood" else Correctness)(price, sigma=sigma)
    rule: ExitRule
    if check_option("classifier", classifier, Classifier) in ("multinomial", "sequence"):
        check_unused(f"classifier={classifier!r}", threshold=(threshold, 0.5), shared=(shared, True))
    if classifier == "multinomial":
        rule = Multinomial(d, depth, oracle=named)
    elif classifier == "sequence":
        if form == "decoder":
            raise ValueError(
                "classifier='sequence' reads the output of an encoder, but there is none; add form=encoder_decoder"
            )
        rule = BySequence(d, depth, oracle=named)
    elif classifier == "geometric":
        rule = Geometric(d, depth, threshold=threshold, shared=shared, oracle=named)
    else:
        check_unused(
            "classifier='probability'", shared=(shared, True), oracle=(oracle, "likelihood"), alpha=(alpha, 1.0)
        )
        rule = ConfidenceThreshold(SoftmaxProbability(), threshold)
    wiring = Wiring(d, heads, head_dim, position, length, norm=norm, dropout=dropout)
    return early_exit(
        wiring,
        form,
        depth,
        pattern,
        rule,
        vocab=vocab,
        weights=weights,
        alpha=alpha,
        paths=paths,
        gamma=gamma,
        outputs=outputs,
    )


SCALED = {"derivative": "gamma scales gradients on purpose"}
EXAMPLES = (
    lambda: depth_adaptive(d=16, depth=3, heads=2, length=64, vocab=11),
    lambda: depth_adaptive(
        d=16, depth=3, heads=2, classifier="geometric", oracle="correctness", sigma=2.0, length=64, vocab=11
    ),
    lambda: depth_adaptive(
        d=16, depth=3, heads=2, form="encoder_decoder", classifier="sequence", norm="post", length=64, vocab=11
    ),
    Example(
        lambda: depth_adaptive(
            d=16,
            depth=3,
            heads=2,
            classifier="probability",
            threshold=0.1,
            outputs="each",
            paths=2,
            length=64,
            vocab=11,
        ),
        breaks=dict.fromkeys(
            ("batch_mates", "shard"), "mixed training draws a random exit for each token, as dropout draws its masks"
        ),
    ),
    Example(
        lambda: depth_adaptive(
            d=16,
            depth=3,
            heads=2,
            classifier="geometric",
            threshold=(0.4, 0.6),
            shared=False,
            weights="inverse",
            gamma=0.5,
            pattern="Causal() & Band(9)",
            position="relative",
            vocab=11,
        ),
        breaks=SCALED,
    ),
    lambda: depth_adaptive(d=16, depth=2, heads=2, weights="inverse_sqrt", position="sines_first", vocab=11),
)
