"""The figure `calm`: exits with copied states, the falling threshold, and the test of thresholds."""

from collections.abc import Iterator

import torch
from torch import nn

import kinformer as kf
from kinformer.lab.calibrate.learn_then_test import learn_then_test
from kinformer.nn.exits.threshold import Threshold
from kinformer.pages.eight_tokens import TOKENS, token_vectors
from kinformer.pages.pictures.support.diagram import Diagram

DEPTH, THRESHOLD = 4, 0.2
WORDS = tuple(dict.fromkeys(TOKENS))
LEFT, STEP = 9, 9  # column of the first token, and columns per token
SCALE, OUTPUT = 0.8, 8  # threshold before the decay, and tokens of the output
RISKS: dict[Threshold, float] = {
    0.9: 0.02,
    0.8: 0.05,
    0.7: 0.08,
    0.6: 0.04,
}  # mean loss of the calibration texts by threshold
TEXTS, DELTA, EPSILON = 1000, 0.1, 0.05


def draw() -> Iterator[Diagram]:
    """Yield the exits of the eight tokens, the threshold of each token, and the test of four thresholds."""
    yield _exits()
    yield _falling_threshold()
    yield _tested_thresholds()


def exits_of_tokens() -> tuple[list[list[float]], list[int]]:
    """Return the confidence of each token after each layer, and the layer after which it leaves."""

    def layer() -> kf.PreNorm:
        attention = kf.Attention(kf.QKV(2, 1, bias=False), kf.Softmax(kf.Causal()), aggregation=kf.Concat())
        for weight in attention.parameters():
            weight.data = torch.eye(2).repeat(3, 1)  # queries, keys and values are the states themselves
        return kf.PreNorm(attention, norm=lambda d: nn.Identity())

    head = nn.Linear(2, len(WORDS), bias=False)
    head.weight.data = token_vectors()[[TOKENS.index(word) for word in WORDS]]
    rule = kf.ConfidenceThreshold(kf.SoftmaxResponse(head), THRESHOLD)
    confidences: list[list[float]] = []
    rule.confidence.register_forward_hook(lambda _, __, confidence: confidences.append(confidence[0].tolist()))
    body = kf.EarlyExit([layer() for _ in range(DEPTH)], nn.Identity(), rule).eval()
    x = token_vectors()[None]
    with torch.no_grad():
        out = body(x, None, kf.Context.of_sequence(x))
    return confidences, out.aux["exit"][0].int().tolist()


def _exits() -> Diagram:
    confidences, exits = exits_of_tokens()
    diagram = Diagram(
        f"exits of the eight tokens in a decoder of {DEPTH} layers, threshold {THRESHOLD}",
        kinds=("computed", "computed, and the token leaves", "copied state"),
        note=f"A number is the confidence after the layer. Layer {DEPTH} of the last token reads keys and values that "
        "are made from the states below it, copied or computed.",
    )
    tops = {layer: 4 * (DEPTH - layer) + (layer < DEPTH) for layer in range(1, DEPTH + 1)}
    for n, token in enumerate(TOKENS):
        x = LEFT + STEP * n
        diagram.words(x + 2, tops[1] + 4, token)
        for layer, y in tops.items():
            above = layer > exits[n]
            kind = 3 if above else 2 if layer == exits[n] else 1
            text = "copy" if above else f"{confidences[layer - 1][n]:.2f}" if layer < DEPTH else "exit"
            below = tops[layer - 1] if layer > 1 else y + 3.5
            diagram.arrow((x + 3, below), (x + 3, y + 3), kind=kind, dashed=above)
            diagram.box(x, y, 7, 3, text, kind, dashed=above)
    diagram.line((LEFT + 3, 4), (LEFT + STEP * (len(TOKENS) - 1) + 3, 4))
    diagram.words(0, 4, "keys")
    for layer, y in tops.items():
        diagram.words(0, y + 1, f"layer {layer}")
    return diagram


def _falling_threshold() -> Diagram:
    left, bottom, wide = 8, 11, 8
    diagram = Diagram(
        f"threshold of each token of an output of {OUTPUT} tokens: 0.9 * {SCALE} + 0.1 exp(-tau t / {OUTPUT})",
        kinds=("tau = 4", "tau = 0"),
        note="Early tokens need more confidence, because all later tokens read them.",
    )
    steps = torch.arange(OUTPUT)[None]

    def height(threshold: float) -> float:
        return bottom - 80 * (threshold - 0.7)

    diagram.line((left, 0), (left, bottom), (left + wide * OUTPUT, bottom))
    for value in (0.70, 0.75, 0.80):
        diagram.words(left - 6, round(height(value)), f"{value:.2f}")
    for kind, temperature in ((2, 0.0), (1, 4.0)):
        values = kf.DecayingThreshold(SCALE, OUTPUT, temperature)(steps)[0].tolist()
        points = [(left + 4 + wide * t, height(value)) for t, value in enumerate(values)]
        diagram.line(*points, kind=kind)
        for t, (x, y) in enumerate(points):
            if kind == 1 or t == OUTPUT - 1:
                diagram.words(x, round(y) - 1, f"{values[t]:.2f}", kind)
    for t, token in enumerate(TOKENS):
        diagram.words(left + 3 + wide * t, bottom + 1, token)
    return diagram


def _tested_thresholds() -> Diagram:
    result = learn_then_test(list(RISKS), lambda threshold: [RISKS[threshold]] * TEXTS, DELTA, EPSILON)
    diagram = Diagram(
        f"Learn then Test: is the expected loss at most {DELTA}? {TEXTS} texts, error probability {EPSILON}",
        kinds=("proven", "not proven", "not tested"),
        note="The test goes from the safest threshold down and ends at the first failure.",
    )
    p = {test.threshold: test.p for test in result.tested}
    for n, (threshold, risk) in enumerate(RISKS.items()):
        x = 22 * n
        kind = 3 if threshold not in p else 1 if p[threshold] <= EPSILON else 2
        p_text = f"p {p[threshold]:.4f}" if threshold in p else "p not computed"
        diagram.box(x, 0, 18, 5, f"threshold {threshold}\nmean loss {risk}\n{p_text}", kind, dashed=kind == 3)
        if n:
            diagram.arrow((x - 4, 2), (x - 1, 2), dashed=kind == 3)
        if threshold == result.threshold:
            diagram.words(x + 5, 5, "▲ chosen", bold=True)
    return diagram
