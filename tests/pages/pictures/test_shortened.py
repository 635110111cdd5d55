"""Pictures of position tables and of shortened keys."""

import torch

from kinformer.core.patterns.full import Full
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.positions.sinusoidal import Sinusoidal
from kinformer.nn.shorteners.mean_pooled import MeanPooled
from kinformer.pages.pictures import shortened
from kinformer.pages.pictures.matrices import position_table


def test_positions_and_shortened_keys() -> None:
    (picture,) = position_table(Sinusoidal(4), 5)
    table = Sinusoidal(4)(torch.arange(5)[None])[0].float()
    torch.testing.assert_close(picture.panels[0].level, (table - table.min()) / (table.max() - table.min()))
    (picture,) = shortened.pictures(Shortened(Softmax(Full()), MeanPooled(4)), 8)
    read, built = picture.panels
    assert read.kind.tolist() == [[1, 1]] * 8 and built.kind.tolist() == [[1, 0]] * 4 + [[0, 1]] * 4
