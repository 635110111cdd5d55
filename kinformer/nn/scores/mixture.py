"""Mixture: a weighted sum of several ways to score a pair of query and key."""

from collections.abc import Mapping
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

import kinformer as kf
from kinformer.core.checks import check_option, check_part
from kinformer.core.extra_projection import ExtraProjection
from kinformer.core.heads import HeadSizes, StateSpec
from kinformer.core.request import Request
from kinformer.core.score import Score

Weights = Literal["learned", "sum"]


class Mixture(Score):
    """Weighted sum of several scores of a pair of query and key, with learned or equal weights.

    score_ij = sum_n alpha_n S_n, with alpha_n > 0 and sum_n alpha_n = 1 if learned

    Choose it to combine attention by content with scores by position. `Mixture(RandomSynthesizer(heads, length),
    Product())`, scores by position plus products q.k, had the highest quality in the paper. Learned weights are equal
    at the start. Softmax is applied after the sum.

    scores: scores S_1, S_2, ..., such as synthesizers and products.
    weights: "learned" is the paper's form: alpha is the softmax of one number for each score. For two scores this is a
        sigmoid of their difference, as in the authors' code. "sum" adds the scores without weights, the code's other
        form.

    Errors: ValueError if no score is given, or if two scores need the same extra projection of the layer. Source: Tay
    et al., 2020, arXiv:2005.00743, section 3.4 (mixture of synthesizers).
    """

    def __init__(self, *scores: Score, weights: Weights = "learned"):
        super().__init__()
        if not scores:
            raise ValueError("a Mixture got no score. Pass at least one, such as Product()")
        for score in scores:
            check_part("a score of a Mixture", score, Score, "a score, such as Product()")
        self.scores = nn.ModuleList(scores)
        self.wants = tuple({want: None for score in scores for want in score.wants})
        learned = check_option("weights", weights, Weights) == "learned"
        self.weights = nn.Parameter(torch.zeros(len(scores))) if learned else None

    def query_extras(self, sizes: HeadSizes) -> Mapping[str, ExtraProjection]:
        extras: dict[str, ExtraProjection] = {}
        for score in self._scores():
            of_score = score.query_extras(sizes)
            if twice := extras.keys() & of_score.keys():
                raise ValueError(
                    f"two scores of a Mixture need the same extra projection {min(twice)!r}. Pass only one of them"
                )
            extras.update(of_score)
        return extras

    def start(self, spec: StateSpec) -> None:
        for score in self._scores():
            score.start(spec)

    def forward(self, request: Request) -> Float[Tensor, "B H T S"]:
        logits = [score(request) for score in self._scores()]
        shut = torch.stack([of_score == -torch.inf for of_score in logits]).any(0)
        # without the fill a weight's gradient would be 0 times infinity
        logits = [of_score.masked_fill(shut, 0.0) for of_score in logits]
        alpha = [1.0] * len(logits) if self.weights is None else self.weights.softmax(0).to(logits[0].dtype)
        mixed = torch.stack([weight * of_score for weight, of_score in zip(alpha, logits, strict=True)]).sum(0)
        return mixed.masked_fill(shut, -torch.inf)

    def _scores(self) -> list[Score]:
        return list(self.scores)


def _random() -> Mixture:
    return Mixture(kf.RandomSynthesizer(2, 64), kf.Product())


def _dense() -> Mixture:
    return Mixture(kf.DenseSynthesizer(2, 64, 6), kf.FactorisedRandom(2, 64, 3), weights="sum")


EXAMPLES = (_random, _dense)
