"""The depth-adaptive Transformer: a decoder that says after its first layer, or after each, where a token leaves."""

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


@member(needs={"length": "position=learned", "price, sigma": "classifier!=probability and depth>1", "gamma": "depth>1"})
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
    """The depth-adaptive Transformer (Elbayad et al., 2019, arXiv:1910.10073), as a decoder.

    Choose it to have the network itself say how many layers a token is worth. The `classifier` names an exit after the
    first layer ("multinomial"), or after each layer says whether to stop ("geometric", above the `threshold`; `shared`:
    one unit for all layers), or names one exit for a whole row from the mean of what the encoder made ("sequence"; with
    `form` "encoder_decoder" alone). They learn, weighted by `alpha`, which exit was best by the `oracle`, where a layer
    costs `price`, of a whole row against the sum of its tokens, and tokens `sigma` apart count too. "probability"
    learns nothing: a token leaves once its largest probability reaches the threshold. Thresholds by layer are what
    `kinformer calibrate --search` finds. All exits learn, by `weights`, from a reading in which nobody leaves; `gamma`
    scales their gradients by layer. With `paths`, 1 to 6 in the paper, they learn from so many readings with exits
    drawn by chance, "mixed training"; the classifier still from one without. `outputs` "each" gives each exit a head of
    its own. The paper's own model translates: `form` "encoder_decoder", with `norm` "post" and `position` "sinusoidal";
    the default is a `gpt`, whose keywords the others are.
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
            raise ValueError("classifier='sequence' reads what an encoder made; add form=encoder_decoder")
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
        breaks=dict.fromkeys(("batch_mates", "shard"), "mixed training draws each token's exit, as dropout is drawn"),
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
