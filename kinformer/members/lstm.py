"""LSTM: the recurrent language model that attention replaced."""

from kinformer.core.checks import check_at_least
from kinformer.core.discover import member
from kinformer.core.training_recipe import Recipe
from kinformer.models.lm import LM
from kinformer.nn.mixers.lstm import LSTM


@member(cost="L", recipe=Recipe(lr=3e-3))
def lstm(d: int = 256, depth: int = 2, forget: float = 0.0, vocab: int = 256, dropout: float = 0.0) -> LM:
    """LSTM language model (Hochreiter and Schmidhuber, 1997; Zaremba et al., 2014, arXiv:1409.2329).

    Choose it as a baseline for members with a memory, especially for the layers of an `agent`. Decoding costs the same
    at every length, and the state is 2 `d` numbers per layer. Choose attention if the model must look up something from
    the distant past. A layer has 8 d^2 weights, and a Transformer's block has 12 d^2. The model trains on consecutive
    text and carries its recurrent state from batch to batch.

    d: model width.
    depth: number of layers.
    forget: additional initial bias of the forget gates; with 3 the model initially remembers about 30 steps, which an
        agent needs.
    vocab: vocabulary size, in tokens.
    dropout: dropout probability of embeddings and of each layer's input.

    Source: Hochreiter and Schmidhuber, 1997, doi:10.1162/neco.1997.9.8.1735.
    """
    body = LSTM(d, check_at_least("depth", depth, 1), dropout=dropout, forget=forget)
    return LM(vocab, d, body, tie=False, dropout=dropout, lanes=True)


EXAMPLES = (lambda: lstm(d=16, depth=2, vocab=11), lambda: lstm(d=16, depth=1, forget=3.0, vocab=11))
