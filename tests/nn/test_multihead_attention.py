"""MultiheadAttention against torch.nn.MultiheadAttention, for each of its options; a pattern against a dense mask."""

import copy

import pytest
import torch
from torch import Tensor, nn

import kinformer as kf

B, T, S, E, H = 3, 5, 7, 8, 2


def pair(**options: object) -> tuple[nn.MultiheadAttention, kf.MultiheadAttention]:
    """PyTorch's layer with weights off their start, and ours with the same weights."""
    theirs = nn.MultiheadAttention(E, H, **{"batch_first": True, **options}).double().eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.5)
    ours = kf.MultiheadAttention(E, H, **options).double().eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(kdim: int = E, vdim: int = E) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(B, T, E, dtype=torch.double),
        torch.randn(B, S, kdim, dtype=torch.double),
        torch.randn(B, S, vdim, dtype=torch.double),
    )


def check_equal(left: tuple[Tensor, Tensor | None], right: tuple[Tensor, Tensor | None]) -> None:
    torch.testing.assert_close(left[0], right[0])
    assert (left[1] is None) == (right[1] is None)
    if left[1] is not None:
        torch.testing.assert_close(left[1], right[1])


PADDING = torch.tensor([[False] * 7, [False] * 4 + [True] * 3, [True] + [False] * 6])
MASK = torch.rand(T, S, generator=torch.Generator().manual_seed(0)) < 0.3
BY_HEAD = torch.randn(B * H, T, S, dtype=torch.double, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 6, "vdim": 4}], ids=str
)
@pytest.mark.parametrize(
    "call",
    [
        {},
        {"need_weights": False},
        {"average_attn_weights": False},
        {"key_padding_mask": PADDING},
        {"attn_mask": MASK, "need_weights": False},
        {"attn_mask": BY_HEAD},
        {"attn_mask": BY_HEAD[0], "key_padding_mask": PADDING.double(), "need_weights": False},
        {"attn_mask": MASK, "key_padding_mask": PADDING},
    ],
    ids=lambda call: "-".join(call) or "plain",
)
def test_results_are_those_of_torch(options: dict, call: dict) -> None:
    theirs, ours = pair(**options)
    q, k, v = inputs(options.get("kdim", E), options.get("vdim", E))
    check_equal(ours(q, k, v, **call), theirs(q, k, v, **call))


def test_other_layouts() -> None:
    q, k, v = inputs()
    theirs, ours = pair(batch_first=False)
    check_equal(
        ours(q.mT.mT.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)),
        theirs(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)),
    )
    theirs, ours = pair()
    check_equal(
        ours(q[0], k[0], v[0], key_padding_mask=PADDING[1]), theirs(q[0], k[0], v[0], key_padding_mask=PADDING[1])
    )


def test_gradients_and_dropout_are_those_of_torch() -> None:
    theirs, ours = pair(dropout=0.5)
    q, k, v = inputs()
    results = []
    for layer in (theirs.train(), ours.train()):
        torch.manual_seed(0)
        y, weights = layer(q, k, v, need_weights=True)
        (y.square().sum() + weights.sum()).backward()
        results.append([parameter.grad for _, parameter in sorted(layer.named_parameters())])
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_pattern_is_a_mask(need_weights: bool) -> None:
    theirs, ours = pair()
    ours.pattern = kf.Causal() & (kf.Band(2) | kf.Tokens(1))
    x = torch.randn(B, 9, E, dtype=torch.double)
    shut = torch.tensor([[not (s <= t and (t - s <= 2 or s < 1)) for s in range(9)] for t in range(9)])
    check_equal(ours(x, x, x, need_weights=need_weights), theirs(x, x, x, attn_mask=shut, need_weights=need_weights))
    causal = torch.ones(9, 9, dtype=torch.bool).triu(1)
    ours.pattern = kf.Full()
    expected = theirs(x, x, x, attn_mask=causal, need_weights=need_weights)
    check_equal(ours(x, x, x, is_causal=True, need_weights=need_weights), expected)


@pytest.mark.parametrize("training", [False, True])
def test_it_replaces_the_attention_of_an_encoder_that_exists(training: bool) -> None:
    """In eval mode PyTorch's encoder layer has a path of its own, which must not pass the pattern by."""
    layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True)
    other = copy.deepcopy(layer)
    other.self_attn = kf.MultiheadAttention(E, H, pattern=kf.Causal() & kf.Band(2))
    other.self_attn.load_state_dict(layer.self_attn.state_dict())
    x = torch.randn(B, 9, E)
    shut = torch.tensor([[not 0 <= t - s <= 2 for s in range(9)] for t in range(9)])
    with torch.set_grad_enabled(training):
        torch.testing.assert_close(other.train(training)(x), layer.train(training)(x, src_mask=shut))
        encoder = nn.TransformerEncoder(other, 2, enable_nested_tensor=False).train(training)
        torch.testing.assert_close(
            encoder(x), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)(x, mask=shut)
        )


def test_a_query_without_keys_reads_zeros() -> None:
    _, ours = pair()
    q, k, v = inputs()
    y, weights = ours(q, k, v, key_padding_mask=torch.ones(B, S, dtype=torch.bool))
    assert torch.equal(y, ours.out_proj.bias.expand_as(y)) and not weights.any()


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match="they have no position"):
        kf.MultiheadAttention(E, H, add_zero_attn=True, pattern=kf.Causal())
    _, ours = pair()
    q, k, v = inputs()
    with pytest.raises(
        ValueError, match=r"key_padding_mask has another shape than the keys: got \[3, 5\], expected \[3, 7\]"
    ):
        ours(q, k, v, key_padding_mask=PADDING[:, :5])
