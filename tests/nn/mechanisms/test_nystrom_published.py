"""PublishedNystrom: the authors' code as a loop, padding among the landmarks, and a norm of each head noticed."""

import pytest
import torch

import kinformer as kf
from kinformer.core.heads import Keys, Queries
from kinformer.core.layer import Context
from tests.nn.mechanisms.heads import close

pytestmark = pytest.mark.usefixtures("float64")

ROWS, HEADS, LENGTH, WIDTH, LANDMARKS = 2, 2, 12, 4, 4
POS = torch.stack([torch.arange(LENGTH), (torch.arange(LENGTH) - 4).clamp_min(-1)])


def softmax(scores: torch.Tensor) -> torch.Tensor:
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


def check(mechanism: kf.Nystrom) -> None:
    """Landmarks are means of 3 columns, padding counted as zeros; Z starts from the largest norms of the batch.

    y = F A^+ (B V): queries q and keys k are divided by the fourth root of their width and are zero at padding.
    """
    q, k, v = torch.randn(3, ROWS, HEADS, LENGTH, WIDTH).unbind()
    ctx = Context(POS, run=True, is_clean=True)  # padding holds finite numbers, as behind a projection with a bias
    y = mechanism(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y
    real = (POS >= 0).double()[:, None, :, None]
    q, k = q * real / WIDTH**0.25, k * real / WIDTH**0.25
    size = LENGTH // LANDMARKS
    q_mean, k_mean = (
        torch.stack([x[:, :, n : n + size].sum(2) / size for n in range(0, LENGTH, size)], 2) for x in (q, k)
    )
    a = softmax(q_mean @ k_mean.mT)
    largest = max(column.sum() for b in a for head in b for column in head.T)
    z = a.mT / (largest * max(line.sum() for b in a for head in b for line in head))
    eye = torch.eye(LANDMARKS)
    for _ in range(6):
        z = z / 4 @ (13 * eye - a @ z @ (15 * eye - a @ z @ (7 * eye - a @ z)))
    for b, h in ((b, h) for b in range(ROWS) for h in range(HEADS)):
        tokens = [t for t in range(LENGTH) if POS[b, t] >= 0]
        f, read = softmax(q[b, h] @ k_mean[b, h].T), softmax(q_mean[b, h] @ k[b, h, tokens].T)
        close(y[b, h, tokens], (f @ z[b, h] @ read @ v[b, h, tokens])[tokens])


def test_it_is_the_authors_code() -> None:
    check(kf.PublishedNystrom(LANDMARKS))


@pytest.mark.parametrize("make", [lambda: kf.PublishedNystrom(LANDMARKS, norms="head"), lambda: kf.Nystrom(LANDMARKS)])
def test_norms_of_each_head_and_landmarks_without_padding_are_noticed(make: object) -> None:
    with pytest.raises(AssertionError):
        check(make())  # type: ignore[operator]


def test_without_padding_it_differs_from_the_paper_by_its_norms_alone() -> None:
    q, k, v = torch.randn(3, ROWS, HEADS, LENGTH, WIDTH).unbind()
    ctx = Context(torch.arange(LENGTH).expand(ROWS, -1), run=True, full=True)
    forms = kf.PublishedNystrom(LANDMARKS, norms="head"), kf.Nystrom(LANDMARKS)
    ours, paper = (form(Queries(q, ctx.by_head), Keys(k, v, ctx.by_head), None, ctx).y.y for form in forms)
    close(ours, paper)
