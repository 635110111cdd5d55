"""PlainLayer: from tensors to the tensor of the layer's output, in nn.Sequential and with masks and a source."""

import torch
from torch import Tensor, nn

import kinformer as kf


def attention(cross: bool = False) -> kf.Attention:
    return kf.Attention(kf.QKV(8, 2), kf.Softmax(kf.Full()), cross=cross)


def test_it_stands_among_modules_and_gives_the_output_of_its_layer() -> None:
    layer, linear, x = attention(), nn.Linear(8, 3), torch.randn(2, 5, 8)
    actual = nn.Sequential(kf.PlainLayer(layer), linear)(x)
    torch.testing.assert_close(actual, linear(layer(x).y), rtol=0, atol=0)


def test_masked_tokens_change_nothing() -> None:
    layer, x, mask = kf.PlainLayer(attention()), torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    mask[1, 3:] = False
    actual = layer(x, mask)
    torch.testing.assert_close(actual[0], layer(x[:1])[0])
    torch.testing.assert_close(actual[1, :3], layer(x[1:, :3])[0])


def test_a_source_is_read_as_the_keys_of_multihead_attention() -> None:
    """The reference is nn.MultiheadAttention with the same weights."""
    inner = attention(cross=True)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True)
    weights: dict[str, Tensor] = inner.state_dict()
    names = {
        "in_proj_weight": "projection.qkv.weight",
        "in_proj_bias": "projection.qkv.bias",
        "out_proj.weight": "aggregation.linear.weight",
        "out_proj.bias": "aggregation.linear.bias",
    }
    theirs.load_state_dict({name: weights[ours] for name, ours in names.items()})
    x, source, mask = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.ones(2, 5, dtype=torch.bool)
    mask[0, 2:] = False
    expected, _ = theirs(x, source, source, key_padding_mask=~mask)
    actual = kf.PlainLayer(inner)(x, source=source, source_mask=mask)
    torch.testing.assert_close(actual, expected)
