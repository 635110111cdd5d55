"""What the claims about GTrXL measure."""

import torch

from kinformer.claims import gtrxl_identity
from kinformer.members.support.gated_xl import GatedXL


@torch.no_grad()
def test_the_change_of_all_sublayers_is_that_of_the_stack() -> None:
    found = gtrxl_identity.changes("gru", seed=3, depth=2, b_g=1.0, d=16)
    torch.manual_seed(3)
    stack, x = (
        GatedXL(16, 2, 4, gtrxl_identity.LENGTH, 0, b_g=1.0).stack().eval(),
        torch.randn(1, gtrxl_identity.LENGTH, 16),
    )
    y = stack(x).y[0]
    sizes, cosines = [], []
    for before, after in zip(x[0], y, strict=True):
        sizes.append(float((after - before).norm() / before.norm()))
        cosines.append(float(before @ after / (before.norm() * after.norm())))
    assert len(found) == 4
    torch.testing.assert_close(torch.tensor(found[-1]), torch.tensor([sizes, cosines]).mean(1))
