"""T5's bias: buckets by their definition and as in Hugging Face, and its place in the scores."""

import math

import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from kinformer.attend import attend
from kinformer.nn.biases.t5 import T5


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(("buckets", "furthest"), [(32, 128), (16, 50), (6, 7), (4, 1000)])
def test_buckets_are_those_of_hugging_face(buckets, furthest, ahead):
    distance = torch.arange(-3000, 3001)
    theirs = T5Attention._relative_position_bucket(
        -distance, bidirectional=ahead, num_buckets=buckets, max_distance=furthest
    )
    actual = T5(2, buckets, furthest, ahead=ahead).bucket(distance)
    assert torch.equal(actual, theirs)
    assert actual.min() == 0 and actual.max() == buckets - 1


def test_near_distances_have_a_bucket_each_and_far_ones_share_by_logarithm():
    bias = T5(1, 10, 60)
    for distance in range(200):
        bucket = distance if distance < 5 else min(9, 5 + math.floor(math.log(distance / 5) / math.log(12) * 5))
        assert int(bias.bucket(torch.tensor(distance))) == bucket
    assert int(bias.bucket(torch.tensor(-7))) == 0


@pytest.mark.parametrize("ahead", [False, True])
def test_each_head_adds_its_number_of_the_bucket(float64, ahead):
    bias = T5(2, 8, 12, ahead=ahead)
    torch.nn.init.normal_(bias.table)
    pos = torch.tensor([[-1, 4, 5, 6, 7, 30], [0, 1, 2, 3, 4, 5]])
    q, k, v = (torch.randn(2, 2, 6, 4) for _ in range(3))
    y = attend(q, k, v, q_pos=pos[:, None], k_pos=pos[:, None], bias=bias).y
    for b, h, i in ((b, h, i) for b in range(2) for h in range(2) for i in range(6) if pos[b, i] >= 0):
        keys = [j for j in range(6) if pos[b, j] >= 0]
        added = [bias.table[bias.bucket(pos[b, i] - pos[b, j]), h] for j in keys]
        logits = torch.stack([q[b, h, i] @ k[b, h, j] / 2 + a for j, a in zip(keys, added, strict=True)])
        torch.testing.assert_close(y[b, h, i], logits.softmax(0) @ v[b, h, keys], rtol=0, atol=1e-12)


def test_what_is_wrong_is_said_in_words():
    with pytest.raises(ValueError, match="buckets=8, furthest=2: expected at least 2 buckets per direction"):
        T5(2, 8, 2)
    x = torch.randn(1, 4, 3, 2)
    with pytest.raises(ValueError, match="got a T5 of 2 heads in a layer of 4 heads"):
        attend(x, x, x, bias=T5(2))
