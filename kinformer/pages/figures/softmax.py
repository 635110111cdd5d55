"""The figure `softmax`: a query and its keys, matrices of weights, and a tree of modifications."""

from collections.abc import Iterator, Mapping, Sequence

import torch

import kinformer as kf
from kinformer.core.discover import part_files
from kinformer.pages.eight_tokens import LABELS, TOKENS, attention_weights, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Picture, shades

QUERY = 5  # position of the token that reads
LEFT, STEP, BOX = 10, 11, 10  # first column, columns for each key, width of a box
Branches = Mapping[str, Mapping[str, Sequence[Sequence[str]]]]  # rows of members by branch and twig
BRANCHES: Branches = {
    "sparse": {
        "by position": (
            ("star_transformer", "longformer", "etc", "bigbird"),
            ("sparse_transformer", "image_transformer"),
            ("blockbert", "axial_transformer", "bp_transformer"),
        ),
        "by content": (("reformer", "routing_transformer", "sac"), ("topk_transformer", "sinkhorn_transformer")),
    },
    "linear": {"feature maps": (("linear_transformer", "performer", "rfa"),)},
    "fewer queries": {"prototypes": (("clustered_transformer", "informer"),)},
    "fewer keys": {
        "compression": (("memory_compressed_transformer", "luna"), ("set_transformer", "linformer", "poolingformer"))
    },
    "low rank": {"of scores or weights": (("low_rank_band", "nystromformer", "csalr"),)},
    "prior": {
        "of distance": (("localness", "gaussian_transformer"),),
        "from lower layers": (("predictive_attention", "realformer"), ("lazyformer",)),
        "of a task": (("camtl",),),
        "without scores": (("average_attention", "hard_coded_gaussian"), ("synthesizer",)),
    },
    "heads": {
        "interaction": (("disagreement", "guided_attention"), ("talking_heads", "collaborative")),
        "spans": (("adaptive_span", "multi_scale"),),
        "aggregation": (("routing_by_agreement",),),
        "shared keys": (("multi_query",),),
    },
}
BRANCH, TWIG, MEMBERS = 14, 32, 56  # columns of the three levels of the tree


def draw() -> Iterator[Diagram | Picture]:
    """Yield the weights of one query, all weights under two patterns, and a tree of modifications."""
    yield _query()
    yield _matrices()
    yield draw_tree(
        "kinds of modified attention (after Lin et al., 2021, arXiv:2106.04554), and members of this package",
        "attention",
        BRANCHES,
    )


def _weights(pattern: kf.Pattern) -> torch.Tensor:
    return attention_weights(kf.Softmax(pattern), 4 * token_vectors(), token_vectors())


def _query() -> Diagram:
    diagram = Diagram(
        f"{TOKENS[QUERY]} ({QUERY}) reads: scores with its query, their softmax, and the weighted mean of the values",
        kinds=("read", "later token: not read"),
        note="The weights of a query are positive and sum to 1.",
    )
    scores = 4 * token_vectors()[QUERY] @ token_vectors().mT / 2**0.5
    weights = _weights(kf.Causal())[QUERY]
    for y, title in ((1, "key k_j"), (4, "score"), (6, "weight"), (9, "value v_j")):
        diagram.words(0, y, title)
    for key, token in enumerate(TOKENS):
        x, is_read = LEFT + STEP * key, key <= QUERY
        diagram.box(x, 0, BOX, 3, f"{key} {token}", 1 if is_read else 2, dashed=not is_read)
        diagram.words(x + 3, 4, f"{scores[key]:5.2f}" if is_read else " -inf")
        diagram.words(x + 3, 6, f"{weights[key]:5.2f}")
        diagram.box(x, 8, BOX, 3, f"v_{key}", 1 if is_read else 2, dashed=not is_read)
        if is_read:
            diagram.line((x + 5, 10), (x + 5, 13), kind=1)
    end = LEFT + STEP * QUERY + 5
    diagram.line((LEFT + 5, 13), (end, 13), kind=1)
    diagram.box(end - 14, 16, 29, 3, f"output of {TOKENS[QUERY]} ({QUERY})", 1)
    diagram.arrow((end, 10), (end, 15.49), kind=1)
    diagram.words(LEFT, 14, "sum of weight * value", 1)
    return diagram


def _matrices() -> Picture:
    names = LABELS
    patterns = {"Full()": kf.Full(), "Causal()": kf.Causal()}
    return Picture(
        "attention weights of all queries; each row sums to 1",
        (),
        tuple(shades(title, _weights(pattern), names, names) for title, pattern in patterns.items()),
        note="The fuller a cell, the larger the weight. An encoder uses Full(), a decoder Causal().",
    )


def draw_tree(caption: str, root: str, branches: Branches) -> Diagram:
    """Return a tree of three levels with members of this package as leaves.

    caption: caption of the diagram.
    root: name of the root.
    branches: rows of names of members, by branch and then by twig.

    Errors: ValueError if a leaf is no member.
    """
    diagram = Diagram(caption, note="`kinformer show NAME` explains each member.")
    y, tops = 0, []
    for branch, twigs in branches.items():
        tops.append(y)
        diagram.words(BRANCH + 3, y, branch, bold=True)
        ends = []
        for twig, rows in twigs.items():
            ends.append(y)
            diagram.words(TWIG + 3, y, twig)
            for row in rows:
                if missing := set(row) - part_files("members").keys():
                    raise ValueError(f"the tree has leaves that are no members: got {missing}, expected members")
                diagram.words(MEMBERS, y, ", ".join(row))
                y += 1
        diagram.line((BRANCH + 4 + len(branch), ends[0]), (TWIG + 1, ends[0]))
        for end in ends[1:]:
            diagram.line((TWIG - 1, ends[0]), (TWIG - 1, end), (TWIG + 1, end))
    diagram.words(0, 0, root, bold=True)
    diagram.line((len(root) + 1, 0), (BRANCH + 1, 0))
    for top in tops[1:]:
        diagram.line((BRANCH - 2, 0), (BRANCH - 2, top), (BRANCH + 1, top))
    return diagram
