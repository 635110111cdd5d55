"""Causal ProbSparse attention, with a sum where nothing was chosen, against Informer's own code."""

from tests.parity.goldens import Golden, goldens
from tests.parity.test_informer_probsparse import compare


@goldens("informer_probsparse_causal")
def test_informer_probsparse_causal(golden: Golden) -> None:
    compare(golden)
