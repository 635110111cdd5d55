"""by_content: whether an attention mechanism chooses keys by the content of tokens."""

from torch import nn

from kinformer.core.key_value_mechanism import KeyValueMechanism
from kinformer.core.mechanism import Mechanism
from kinformer.nn.mechanisms.clustered import Clustered
from kinformer.nn.mechanisms.explicit import Explicit
from kinformer.nn.mechanisms.probsparse import ProbSparse
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.mechanisms.sac import EdgeAttention
from kinformer.nn.mechanisms.sac_published import EdgePairAttention
from kinformer.nn.mechanisms.sinkhorn import Sinkhorn
from kinformer.nn.mechanisms.topk import BestOfRow, TopK


def has_tags(module: nn.Module) -> bool:
    """Whether an attention mechanism assigns keys to buckets or clusters by their content.

    module: the mechanism.
    """
    return isinstance(module, KeyValueMechanism) and type(module).tags is not Mechanism.tags


def by_content(module: nn.Module) -> bool:
    """Whether an attention mechanism chooses keys by content.

    If so, its pattern does not show which keys it reads.

    module: the mechanism.
    """
    chosen = isinstance(module, EdgeAttention | EdgePairAttention | Clustered | ProbSparse | Retrieval | Sinkhorn)
    return chosen or has_tags(module) or best_of(module) is not None


def best_of(module: nn.Module) -> int | None:
    """Return the k of top-k attention, or None if the mechanism is not limited to the k best keys.

    module: the mechanism.
    """
    if isinstance(module, Explicit) and isinstance(module.before, BestOfRow):
        return module.before.k
    return module.k if isinstance(module, TopK) else None
