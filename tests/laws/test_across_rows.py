"""A part that compares the rows of a batch says so by `across_rows_reasons`, by which a training in pieces warns."""

import pytest
from torch import nn

from kinformer.core.discover import kinds
from kinformer.lab.train.micro_batches import across_rows_reasons
from tests.discovered import discovered

LAWS = {"batch_mates", "shard"}
WEIGHED = "a mean over other things than targets, weighed by targets: an exception that Settings names"
CHANCE = "chance in a forward: an exception that Settings names"
OTHERWISE = {  # files whose examples break these laws although no row is compared with another
    "models.trajectory": WEIGHED,
    "members.decision_transformer": WEIGHED,
    "members.guided_attention": WEIGHED,
    "members.universal_transformer": WEIGHED,
    "depth.early_exit": CHANCE,
    "members.depth_adaptive": CHANCE,
    "memories.compressive": "rows whose segments end at other columns cut them; the rows of a training end together",
    "members.compressive_transformer": "as memories.compressive",
}
EXAMPLES = [example for kind in kinds() for example in discovered(kind)]
BROKEN = [example for example in EXAMPLES if LAWS & example.breaks.keys()]


def test_whoever_depends_on_batch_mates_says_so() -> None:
    silent = {example.name.rpartition(".")[0] for example in BROKEN if not across_rows_reasons(example.part)}
    assert silent == OTHERWISE.keys()
    assert len(BROKEN) - len(silent) >= 3


@pytest.mark.prove
def test_whoever_says_so_depends_on_batch_mates() -> None:
    flagged = [
        example for example in EXAMPLES if isinstance(example.part, nn.Module) and across_rows_reasons(example.part)
    ]
    assert flagged and all(LAWS & example.breaks.keys() for example in flagged)
