"""Parts with a dropout: PyTorch's own layers and parts with a number `dropout`."""

import pytest
from torch import nn

from kinformer.core.dropout import disable_dropout, dropout_parts, largest_dropout
from kinformer.laws.support.dropout_on import drop_share

LAYERS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class OwnNumber(nn.Module):
    """A part that drops a share by a number of its own."""

    def __init__(self, dropout: float):
        super().__init__()
        self.dropout = dropout


@pytest.mark.parametrize("layer", LAYERS)
def test_each_dropout_layer_of_pytorch_is_found_set_and_disabled(layer: type[nn.Module]) -> None:
    dropping, own = layer(0.4), OwnNumber(0.2)
    model = nn.Sequential(nn.Linear(2, 2), dropping, own)
    assert dropout_parts(model) == [dropping, own]
    assert largest_dropout(model) == 0.4
    with drop_share(dropout_parts(model), 0.3):
        assert (dropping.p, own.dropout) == (0.3, 0.3)
    dropping.p = own.dropout = 0.4
    disable_dropout(model)
    assert (dropping.p, own.dropout) == (0.0, 0.0)


def test_a_module_that_drops_nothing_has_no_share() -> None:
    assert largest_dropout(nn.Linear(2, 2)) == 0.0
