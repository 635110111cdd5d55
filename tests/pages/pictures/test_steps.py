"""The picture of how far each token goes."""

import torch

from kinformer.core.discover import examples
from kinformer.pages.pictures import steps


def test_a_line_of_steps_is_filled_while_tokens_take_it() -> None:
    for kind, file, word in (
        ("depth", "act", "steps"),
        ("depth", "recurrent_act", "steps"),
        ("depth", "early_exit", "exit"),
    ):
        make = next(x.make for name, x in examples(kind) if name == file)
        torch.manual_seed(0)
        layer = make().eval()
        torch.manual_seed(1)
        (picture,) = steps.pictures(layer, 7)
        torch.manual_seed(1)
        counts = layer(2 * torch.randn(1, 7, 16)).aux[word][0]
        assert picture.panels[0].level.sum(0).tolist() == counts.tolist()
