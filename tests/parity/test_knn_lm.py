"""kNN-LM's probabilities against the authors' code."""

import math

import torch

from kinformer.core.neighbours import Entries
from kinformer.models.support.memory_probabilities import log_p_by_token, log_probabilities, mix_log_p
from tests.parity.goldens import Golden, close, goldens


@goldens("knn_lm")
def test_knn_lm(golden: Golden) -> None:
    sizes, tensors = golden.hyperparameters, golden.tensors
    queries = tensors["queries"]
    neighbours = Entries(tensors["keys"], tensors["values"]).search(queries.flatten(0, -2), sizes["k"])
    own = log_probabilities(tensors["lm_logits"])
    scores = -neighbours.distances / sizes.get("temperature", 1.0)
    likely = log_p_by_token(scores, neighbours.tokens, own.shape[-1]).view(own.shape)
    close(likely.exp(), tensors["p_knn"])
    close(mix_log_p(own, likely, sizes["lambda"]), tensors["log_p"])
    tiny = math.log(torch.finfo(torch.float32).tiny)  # goldens are kept in float32, which calls what is smaller 0
    assert torch.equal(likely > tiny, tensors["p_knn"] > math.exp(tiny))
