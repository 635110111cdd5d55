"""CAMTL against the paper's equation, block by block, rows of several tasks, and what it refuses."""

import math

import pytest
import torch
from torch import Tensor

from kinformer.core.attention_output import BLOCK
from kinformer.core.bias import Plus
from kinformer.core.layer import Context
from kinformer.core.patterns.full import Full
from kinformer.core.score_matrix import scores
from kinformer.nn.attention import Attention
from kinformer.nn.biases.camtl import CAMTL, CAMTLByColumn, ConditionalBlocks
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.projections.qkv import QKV
from tests.nn.biases.requests import make_request
from tests.nn.biases.segments import strong, the_cut_changes_nothing, weights_are_those_of_the_whole

KINDS = pytest.mark.parametrize("kind", [CAMTL, CAMTLByColumn])
POS = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [-1, 0, 1, 2, 3, -1, -1]])
TASK = torch.tensor([[1] * 7, [2] * 7])


def prior(bias: ConditionalBlocks, z: Tensor, blocks: int) -> Tensor:
    """M(z), 7 x 7: the blocks A_n modulated, laid along the diagonal one after the other."""
    blocks_mask, size = torch.zeros(7, 7), math.ceil(7 / blocks)
    gamma, beta = bias.gamma(z), bias.beta(z)
    for lo in range(0, 7, size):
        hi = min(lo + size, 7)
        block = bias.blocks[lo:hi, : hi - lo]
        if isinstance(bias, CAMTL):
            of_pairs = slice(lo * size, hi * size)
            g, b = (x[of_pairs].view(hi - lo, size)[:, : hi - lo] for x in (gamma, beta))
            blocks_mask[lo:hi, lo:hi] = block * g + b
        else:
            blocks_mask[lo:hi, lo:hi] = block * (1 + gamma[: hi - lo]) + beta[: hi - lo]
    return blocks_mask


def with_task(bias: ConditionalBlocks, pos: Tensor = POS, task: Tensor | None = TASK) -> Tensor:
    q, k = torch.ones(len(pos), 2, pos.shape[1], 4), torch.zeros(len(pos), 2, pos.shape[1], 4)
    request = make_request(q, k, q_pos=pos[:, None], k_pos=pos[:, None], bias=bias)
    labels = {} if task is None else {"task": task}
    return scores(request.replace(queries=request.queries._replace(labels=labels)).prepare_bias())


@KINDS
@pytest.mark.parametrize("blocks", [1, 2, 3, 4, 7], ids=str)
def test_the_equation(kind: type[ConditionalBlocks], blocks: int, float64: None) -> None:
    """Scores of zero keys are M, of each row its own task's; blocks that do not divide L leave a short one behind."""
    bias = strong(kind(3, 5, 7, blocks))
    actual = with_task(bias)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (2, 2, 7, 7))).tolist():
        if POS[b, i] >= 0 and POS[b, j] >= 0:
            want = prior(bias, bias.embedding.weight[TASK[b, 0]], blocks)[POS[b, i], POS[b, j]]
            torch.testing.assert_close(actual[b, h, i, j], want, rtol=0, atol=1e-12)


@KINDS
def test_batch_mates_of_other_tasks_change_nothing(kind: type[ConditionalBlocks], float64: None) -> None:
    layer, x = Attention(QKV(16, 2), Softmax(Full(), strong(kind(3, 5, 7, 2)))), torch.randn(2, 7, 16)
    mixed = layer(x, None, Context(POS, labels={"task": TASK})).y
    for n in range(2):
        alone = Context(POS[n : n + 1], labels={"task": TASK[n : n + 1]})
        real = POS[n] >= 0
        torch.testing.assert_close(layer(x[n : n + 1], None, alone).y[0, real], mixed[n, real], rtol=0, atol=1e-12)
    other = layer(x, None, Context(POS, labels={"task": TASK - 1})).y
    assert not torch.allclose(other[0], mixed[0])


@KINDS
def test_what_another_bias_shuts_out_stays_out(kind: type[ConditionalBlocks]) -> None:
    class Shut(CAMTL):
        def bind(self, piece):  # type: ignore[no-untyped-def]
            return lambda s, b, h, i, j: torch.where(i == j, s, -torch.inf)

    actual = with_task(Plus(Shut(3, 5, 7, 2), kind(3, 5, 7, 2)))
    assert torch.equal(actual[0, 0].isfinite(), torch.eye(7, dtype=torch.bool))


@KINDS
@pytest.mark.parametrize("cuts", [[1] * 12, [5, 1, 6]], ids=str)
def test_it_decodes_with_the_task_of_each_query(kind: type[ConditionalBlocks], cuts: list[int], float64: None) -> None:
    bias = strong(kind(3, 5, 12, 4, label="segment"))
    with pytest.raises(ValueError, match="reads the label 'segment' of queries, but the queries have none"):
        the_cut_changes_nothing(bias, cuts)  # which ends with a call without labels, once the cuts were found alike


@KINDS
def test_rows_of_the_attention_matrix_are_those_of_the_whole(kind: type[ConditionalBlocks], float64: None) -> None:
    weights_are_those_of_the_whole(strong(kind(3, 5, BLOCK + 7, 9, label="segment")))


def test_layers_share_task_embeddings() -> None:
    first = CAMTL(3, 5, 7, 2)
    second = CAMTLByColumn(3, 5, 7, 2, embedding=first.embedding)
    assert second.embedding is first.embedding
    with pytest.raises(ValueError, match=r"embedding has the wrong shape: got \[3, 5\], expected \[4, 5\]"):
        CAMTL(4, 5, 7, 2, embedding=first.embedding)


@KINDS
def test_what_it_refuses(kind: type[ConditionalBlocks]) -> None:
    bias = kind(3, 5, 7, 2)
    with pytest.raises(
        ValueError, match=r"reads the label 'task' of queries, but the queries have none\. Pass Context"
    ):
        with_task(bias, task=None)
    with pytest.raises(IndexError, match="task 3 is out of range, expected 0 to 2; create .* with more tasks"):
        with_task(bias, task=TASK + 1)
    with pytest.raises(IndexError, match="position 7 is out of range, expected 0 to 6.*larger length"):
        with_task(bias, pos=POS + 1)
    for wrong in ({"blocks": 0}, {"blocks": 8}, {"tasks": 0}, {"length": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))}="):
            kind(**{"tasks": 3, "d": 5, "length": 7, "blocks": 2, **wrong})


@KINDS
def test_blocks_begin_as_beta_alone_and_a_change_of_them_is_changed_by_about_one(kind: type[ConditionalBlocks]) -> None:
    """gamma of the pairs, 1 + gamma of the columns, begin near 1: what is learned in A goes into M as it is."""
    torch.manual_seed(0)
    bias = kind(3, 16, 12, 3)
    rows = torch.zeros(1, 1, 12, dtype=torch.long), torch.arange(12)[None, None]
    with torch.no_grad():
        before = bias.rows(*rows)
        bias.blocks += 1
        assert (bias.rows(*rows) - before).mean().item() == pytest.approx(1, abs=0.1)
