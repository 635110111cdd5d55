"""LSTM: the recurrent language model that attention took the place of."""

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.models.lm import LM
from kinformer.nn.mixers.lstm import LSTM


@member(recipe=Recipe(lr=3e-3))
def lstm(d: int = 256, depth: int = 2, forget: float = 0.0, vocab: int = 256, dropout: float = 0.0) -> LM:
    """An LSTM language model (Hochreiter and Schmidhuber, 1997; in this form Zaremba et al., 2014, arXiv:1409.2329).

    The baseline of members with a memory, as an agent's layers above all: it decodes at a cost that no length changes,
    and what it remembers is 2 `d` numbers for each of its `depth` layers. Choose attention where something far back
    must be looked up. With a `forget` of 3 it remembers for some 30 steps from the start, which an agent needs. A layer
    has 8 d^2 weights where a Transformer's block has 12 d^2. It trains on consecutive text,
    its state carried on.
    """
    body = LSTM(d, check_at_least("depth", depth, 1), dropout=dropout, forget=forget)
    return LM(vocab, d, body, tie=False, dropout=dropout, lanes=True)


EXAMPLES = (lambda: lstm(d=16, depth=2, vocab=11), lambda: lstm(d=16, depth=1, forget=3.0, vocab=11))
