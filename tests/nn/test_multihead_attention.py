"""MultiheadAttention against torch.nn.MultiheadAttention, for each of its options; a pattern against a dense mask."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

import kinformer as kf

B, T, S, E, H = 3, 5, 7, 8, 2
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")


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
MASK = torch.rand(S, S, generator=torch.Generator().manual_seed(0)) < 0.3
MASK[:, 1] = False  # a key that no mask shuts out: PyTorch gives NaN to a query without keys
BY_HEAD = torch.randn(B * H, S, S, dtype=torch.double, generator=torch.Generator().manual_seed(1))
CAUSAL = torch.ones(S, S, dtype=torch.bool).triu(1)


OPTIONS = [{}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 6, "vdim": 4}]
CALLS = [
    {},
    {"need_weights": False},
    {"average_attn_weights": False},
    {"key_padding_mask": PADDING},
    {"key_padding_mask": PADDING, "need_weights": False},
    {"attn_mask": MASK, "need_weights": False},
    {"attn_mask": BY_HEAD},
    {"attn_mask": BY_HEAD[0], "key_padding_mask": PADDING.double(), "need_weights": False},
    {"attn_mask": MASK, "key_padding_mask": PADDING},
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: "-".join(call) or "plain")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_results_are_those_of_torch(options: dict, call: dict) -> None:
    theirs, ours = pair(**options)
    q, k, v = inputs(options.get("kdim", E), options.get("vdim", E))
    rows = {**call, "attn_mask": call["attn_mask"][..., :T, :]} if "attn_mask" in call else call
    check_equal(ours(q, k, v, **rows), theirs(q, k, v, **rows))
    if "kdim" not in options:
        check_equal(ours(k, k, k, **call), theirs(k, k, k, **call))
        check_equal(ours(v, k, k, **call), theirs(v, k, k, **call))


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
def test_is_causal_is_a_causal_mask_besides_all_others(options: dict, need_weights: bool) -> None:
    """PyTorch gets the mask and no hint: with the hint it shuts out appended keys if need_weights is False."""
    theirs, ours = pair(**options)
    x, other, padding = inputs()[1], inputs()[1], PADDING & (torch.arange(S) > 0)
    mask = MASK & ~torch.eye(S, dtype=torch.bool)
    for masks, expected in (
        ({}, {"attn_mask": CAUSAL}),
        ({"attn_mask": CAUSAL}, {"attn_mask": CAUSAL}),
        ({"attn_mask": mask}, {"attn_mask": CAUSAL | mask}),
        ({"attn_mask": BY_HEAD}, {"attn_mask": BY_HEAD.masked_fill(CAUSAL, -torch.inf)}),
        ({"key_padding_mask": padding}, {"attn_mask": CAUSAL, "key_padding_mask": padding}),
    ):
        for q in (x, other):
            result = ours(q, x, x, **masks, is_causal=True, need_weights=need_weights)
            check_equal(result, theirs(q, x, x, **expected, need_weights=need_weights))
    y, _ = ours(other[:, :T], x, x, is_causal=True, need_weights=need_weights)
    torch.testing.assert_close(y, theirs(other[:, :T], x, x, attn_mask=CAUSAL[:T])[0])


def test_other_layouts() -> None:
    q, k, v = inputs()
    theirs, ours = pair(batch_first=False)
    check_equal(
        ours(q.mT.mT.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)),
        theirs(q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)),
    )
    theirs, ours = pair()
    for masks in ({"key_padding_mask": PADDING[1]}, {"attn_mask": MASK[:T]}, {"attn_mask": BY_HEAD[:H, :T]}):
        check_equal(ours(q[0], k[0], v[0], **masks), theirs(q[0], k[0], v[0], **masks))


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


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("average", [True, False])
def test_nested_rows_are_read_as_torch_reads_them(need_weights: bool, average: bool) -> None:
    theirs, ours = pair()
    x = torch.nested.nested_tensor([torch.randn(n, E, dtype=torch.double) for n in (5, 1, 7)])
    with torch.no_grad():
        expected, expected_weights = theirs(x, x, x, need_weights=need_weights, average_attn_weights=average)
        y, weights = ours(x, x, x, need_weights=need_weights, average_attn_weights=average)
    assert y.is_nested and [len(row) for row in y.unbind()] == [5, 1, 7]
    check_equal((y.to_padded_tensor(0.0), weights), (expected.to_padded_tensor(0.0), expected_weights))


@pytest.mark.parametrize("pattern", [None, kf.Causal() & kf.Band(2)], ids=str)
def test_it_replaces_the_attention_of_an_encoder_that_nests_its_input(pattern: kf.Pattern | None) -> None:
    layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2).double().eval()
    assert theirs.use_nested_tensor
    ours = copy.deepcopy(theirs)
    for ours_layer, theirs_layer in zip(ours.layers, theirs.layers, strict=True):
        ours_layer.self_attn = kf.MultiheadAttention(E, H, pattern=pattern).double().eval()
        ours_layer.self_attn.load_state_dict(theirs_layer.self_attn.state_dict())
    padding = torch.arange(9) >= torch.tensor([[9], [4], [6]])
    x = torch.randn(B, 9, E, dtype=torch.double)
    shut = torch.tensor([[not 0 <= t - s <= 2 for s in range(9)] for t in range(9)])
    mask = None if pattern is None else shut
    for grad in (False, True):  # with gradients PyTorch's encoder passes padded input and the mask
        with torch.set_grad_enabled(grad):
            y = ours(x, src_key_padding_mask=padding)
        expected = theirs(x, mask=mask, src_key_padding_mask=padding)
        torch.testing.assert_close(y[~padding], expected[~padding])
        assert grad or not y[padding].any()


def test_causal_gradients_pass_through_nested_input() -> None:
    """PyTorch's layer gets each row by itself: it takes no nested input with gradients."""
    theirs, ours = pair()
    rows = [torch.randn(n, E, dtype=torch.double) for n in (5, 1, 7)]
    x = torch.nested.nested_tensor(rows)
    torch.stack([row.square().sum() for row in ours.train()(x, x, x, is_causal=True)[0].unbind()]).sum().backward()
    sum(theirs(row, row, row, attn_mask=CAUSAL[: len(row), : len(row)])[0].square().sum() for row in rows).backward()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name).grad, parameter.grad)


@pytest.mark.parametrize("options", [{}, {"kdim": 6, "vdim": 4}, {"add_bias_kv": True, "bias": False}], ids=str)
def test_parameters_are_reset_as_in_torch(options: dict) -> None:
    theirs, ours = pair(**options)
    for layer in (theirs, ours):
        torch.manual_seed(0)
        layer._reset_parameters()
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(ours.get_parameter(name), parameter, rtol=0, atol=0)
    assert not ours._qkv_same_embed_dim


def test_repr_shows_the_pattern() -> None:
    pattern = kf.Causal() & kf.Band(2)
    assert f"pattern={pattern}" in repr(kf.MultiheadAttention(E, H, pattern=pattern))
    assert repr(kf.MultiheadAttention(E, H)) == repr(nn.MultiheadAttention(E, H))


@pytest.mark.parametrize("is_self", [True, False])
def test_where_torch_gives_nan_to_a_query_without_keys(is_self: bool) -> None:
    """PyTorch gives NaN with need_weights=True and in its fast path. Ours gives zeros, and agrees elsewhere."""
    theirs, ours = pair()
    x = torch.randn(B, S, E, dtype=torch.double)
    mask = torch.zeros(S, S, dtype=torch.bool)
    mask[2] = True
    for grad, need_weights in itertools.product((True, False), repeat=2):
        with torch.set_grad_enabled(grad):
            q = x if is_self else x.clone()
            y = ours(q, x, x, attn_mask=mask, need_weights=need_weights)[0]
            expected = theirs(q, x, x, attn_mask=mask, need_weights=need_weights)[0]
        nan = torch.zeros(B, S, E, dtype=torch.bool)
        nan[:, 2] = need_weights or (is_self and not grad)
        assert torch.equal(expected.isnan(), nan)
        torch.testing.assert_close(y, torch.where(nan, theirs.out_proj.bias, expected))


def test_a_query_without_keys_reads_zeros() -> None:
    _, ours = pair()
    q, k, v = inputs()
    y, weights = ours(q, k, v, key_padding_mask=torch.ones(B, S, dtype=torch.bool))
    assert torch.equal(y, ours.out_proj.bias.expand_as(y)) and not weights.any()


WRONG_SHAPE = r"attn_mask has the wrong shape: got {}, expected \[5, 7\] or \[6, 5, 7\]"


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"attn_mask": MASK}, WRONG_SHAPE.format(r"\[7, 7\]")),
        ({"attn_mask": MASK[:T, :T]}, WRONG_SHAPE.format(r"\[5, 5\]")),
        ({"attn_mask": MASK[:1]}, WRONG_SHAPE.format(r"\[1, 7\]")),
        ({"attn_mask": MASK[0]}, WRONG_SHAPE.format(r"\[7\]")),
        ({"attn_mask": BY_HEAD[:, :T, :T]}, WRONG_SHAPE.format(r"\[6, 5, 5\]")),
        ({"attn_mask": BY_HEAD[:B, :T]}, WRONG_SHAPE.format(r"\[3, 5, 7\]")),
        ({"attn_mask": BY_HEAD[None, :, :T]}, WRONG_SHAPE.format(r"\[1, 6, 5, 7\]")),
        (
            {"key_padding_mask": PADDING[:, :5]},
            r"key_padding_mask has the wrong shape: got \[3, 5\], expected \[3, 7\]",
        ),
        ({"key_padding_mask": PADDING[0]}, r"key_padding_mask has the wrong shape: got \[7\], expected \[3, 7\]"),
        ({"attn_mask": MASK[:T].byte()}, r"attn_mask has the wrong dtype: got torch.uint8, expected bool or floating"),
        ({"key_padding_mask": PADDING.long()}, r"key_padding_mask has the wrong dtype: got torch.int64"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"add_bias_kv": True, "add_zero_attn": True}], ids=["plain", "appended"])
def test_masks_that_torch_refuses(masks: dict, message: str, options: dict) -> None:
    theirs, ours = pair(**options)
    with pytest.raises((AssertionError, RuntimeError)):
        theirs(*inputs(), **masks)
    with pytest.raises(ValueError, match=message):
        ours(*inputs(), **masks)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 5), (2, 7), (2, 7)), r"the batch sizes differ: got query \[.*\], key \[.*\], value \[.*\], expected"),
        (((3, 5), (3, 7), (2, 7)), "the batch sizes differ"),
        (((3, 5), (3, 7), (3, 6)), r"key and value differ in length: got query .*, expected a value for each key"),
        (((3, 5), (7,), (7,)), r"wrong numbers of dimensions: got .*key \[7, 8\].*, expected 3 each, or 2 each"),
        (((5,), (3, 7), (3, 7)), "wrong numbers of dimensions"),
        (((3, 5), (3, 7), (7,)), "wrong numbers of dimensions"),
        (((1, 3, 5), (1, 3, 7), (1, 3, 7)), "wrong numbers of dimensions"),
        (((5,), (7,), (6,)), "key and value differ in length"),
    ],
)
def test_inputs_that_torch_refuses(batch_first: bool, shapes: tuple, message: str) -> None:
    theirs, ours = pair(batch_first=batch_first)
    qkv = [torch.randn(*(shape if batch_first else shape[::-1]), E, dtype=torch.double) for shape in shapes]
    with pytest.raises((AssertionError, RuntimeError)):
        theirs(*qkv)
    with pytest.raises(ValueError, match=message):
        ours(*qkv)


def test_nested_input_that_torch_refuses() -> None:
    theirs, ours = pair()
    rows = [torch.randn(n, E, dtype=torch.double) for n in (5, 7)]
    x, other = torch.nested.nested_tensor(rows), torch.nested.nested_tensor(rows)
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    padded = x.to_padded_tensor(0.0)
    for qkv, masks in (
        ((x, x, x), {"key_padding_mask": PADDING[:2]}),
        ((x, other, other), {}),
        ((padded, x, x), {}),
        ((jagged, jagged, jagged), {}),
    ):
        with torch.no_grad(), pytest.raises((AssertionError, RuntimeError)):
            theirs(*qkv, **masks)
        with pytest.raises(ValueError, match="nested input is not supported here: .*enable_nested_tensor=False"):
            ours(*qkv, **masks)


def test_a_pattern_says_nothing_of_appended_keys() -> None:
    with pytest.raises(ValueError, match="appended keys have no position"):
        kf.MultiheadAttention(E, H, add_zero_attn=True, pattern=kf.Causal())
