"""The figure `gpt_and_bert`: inputs and targets of both losses, and the keys of three architectures."""

from collections.abc import Iterator

import torch

import kinformer as kf
from kinformer.pages.eight_tokens import LABELS, TOKENS
from kinformer.pages.pictures.support.diagram import Diagram
from kinformer.pages.pictures.support.picture_panels import Panel, Picture

SEED = 386  # a choice in which one token is masked, one replaced and one unchanged
LEFT, STEP, BOX = 10, 11, 10
KINDS = ("not chosen", "chosen: masked", "chosen: random token", "chosen: unchanged")


def draw() -> Iterator[Diagram | Picture]:
    """Yield the inputs and targets of GPT and of BERT, and the patterns of three architectures."""
    yield _gpt()
    yield _bert()
    yield _patterns()


def hidden_row() -> tuple[list[int], list[int]]:
    """Return the tokens that BERT reads, with 8 for a masked token, and the targets, with -1 for none."""
    mlm = kf.MLM(len(TOKENS), 2, kf.Stack([kf.PostNorm(kf.Attention(kf.QKV(2, 1), kf.Softmax(kf.Full())))]))
    read, targets = mlm.hide(torch.arange(len(TOKENS))[None], fixed=True, seed=SEED)
    return read[0].tolist(), targets[0].tolist()


def _gpt() -> Diagram:
    diagram = Diagram(
        "GPT: each position predicts the next token from itself and earlier tokens",
        kinds=("input", "target"),
        note="One pass over the row computes all predictions and their losses.",
    )
    diagram.words(0, 1, "target")
    diagram.words(0, 7, "input")
    diagram.box(LEFT, 4, STEP * (len(TOKENS) - 1) - 1, 1, "decoder: every position reads itself and earlier positions")
    for place, token in enumerate(TOKENS[:-1]):
        x = LEFT + STEP * place
        diagram.box(x, 0, BOX, 3, TOKENS[place + 1], 2)
        diagram.box(x, 6, BOX, 3, f"{place} {token}", 1)
    return diagram


def _bert() -> Diagram:
    diagram = Diagram(
        "BERT: each chosen token is predicted from the whole changed row",
        kinds=KINDS,
        note="The probabilities: 15% of tokens are chosen; 80% of them become [MASK], 10% a random token, 10% stay.",
    )
    read, targets = hidden_row()
    diagram.words(0, 1, "target")
    diagram.words(0, 7, "input")
    diagram.words(0, 9, "original")
    diagram.box(LEFT, 4, STEP * len(TOKENS) - 1, 1, "encoder: every position reads every position")
    for place, (token, target) in enumerate(zip(read, targets, strict=True)):
        x, is_chosen = LEFT + STEP * place, target >= 0
        kind = 1 if not is_chosen else 2 if token == len(TOKENS) else 4 if token == place else 3
        diagram.box(x, 6, BOX, 3, "[MASK]" if token == len(TOKENS) else f"{TOKENS[token]}", kind)
        diagram.words(x + 3, 9, LABELS[place])
        if is_chosen:
            diagram.box(x, 0, BOX, 3, TOKENS[target], kind)
    return diagram


def _patterns() -> Picture:
    names = LABELS
    forms = {"encoder (BERT)": kf.Full(), "decoder (GPT)": kf.Causal(), "encoder-decoder": kf.Causal() | kf.Prefix(4)}
    panels = []
    for title, pattern in forms.items():
        reads = pattern.matrix(len(TOKENS))
        panels.append(Panel(title, reads.long(), reads.float(), tuple(names), tuple(names)))
    return Picture(
        "keys of each token in three architectures; in the third the source is 0-3 and the target 4-7",
        (),
        tuple(panels),
        note="Cross-attention lets the target read the whole source.",
    )
