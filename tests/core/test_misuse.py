"""Calls in the manner of other libraries: each is refused in one line that says what to write."""

from typing import Any

import torch
from torch import nn

import kinformer as kf
from tests.unhooked import refusals, unhooked

OUT = "TypeError: a layer returns Out, which holds more than a tensor; use its value: layer(x).y"
LOSS = "TypeError: a model returns Loss, which holds more than a tensor; use its value: model(batch).total"
MASK = "a pattern such as Causal() & Band(64) chooses the keys; ctx=Context.of_sequence(x, mask) marks padding"
SHAPE = "expected a floating tensor [B, T, D]"
LAYER = "give a layer, such as Attention(...), MLP(d) or a block of both; a layer of your own is a subclass of kf.Layer"
PAIR = "expected one tuple of source [B, S] and target [B, T]. Write model((source, target))"

CALLS = {
    # a layer's input
    "layer(x[..., :6])": "ValueError: Attention got x of shape [2, 4, 6], expected width d=8",
    "layer(x[..., 0], None, ctx)": f"ValueError: x has shape [2, 4], {SHAPE}; pass a single row as x[None]",
    "layer(x[..., None], None, ctx)": f"ValueError: x has shape [2, 4, 8, 1], {SHAPE}; pass a single row as x[None]",
    "layer('text')": f"ValueError: x is of type str, {SHAPE}; make it with torch.as_tensor(x)",
    "layer(x.numpy())": f"ValueError: x is of type ndarray, {SHAPE}; make it with torch.as_tensor(x)",
    "layer(ids)": f"ValueError: x is torch.int64 of shape [1, 4], {SHAPE}; embed token ids first, or pass x.float()",
    "layer(layer(x))": f"ValueError: x is of type Out, {SHAPE}; pass the value of the other layer, out.y",
    # further arguments of other libraries
    "layer(x, x, x)": (
        "TypeError: Attention got queries, keys or values as further tensors, expected x, state and ctx. "
        "layer(x).y is self-attention; cross-attention reads Context(pos, source=..., source_pos=...)"
    ),
    "layer(x, mask)": (
        "TypeError: Attention got a tensor as state. Mark real tokens by ctx=Context.of_sequence(x, mask), and "
        "choose keys by a pattern such as Causal()"
    ),
    "layer(x, mask.long())": (
        "TypeError: Attention got a tensor as state. Mark real tokens by ctx=Context.of_sequence(x, mask.bool()), "
        "and choose keys by a pattern such as Causal()"
    ),
    "layer(x, None, mask)": (
        "TypeError: Attention got a tensor as ctx. Mark real tokens by ctx=Context.of_sequence(x, mask), and "
        "choose keys by a pattern such as Causal()"
    ),
    "layer(x, None, 'ctx')": "TypeError: ctx is of type str, expected Context. Give Context.of_sequence(x, mask)",
    "layer(x, ctx)": "TypeError: the second argument is the state; pass the context as layer(x, None, ctx)",
    "layer(x, need_weights=True)": (
        "TypeError: Attention has no keyword 'need_weights'; kf.MultiheadAttention returns attention weights, and "
        "kf.look(model, text) does for a whole model"
    ),
    "layer(x, attn_mask=mask)": f"TypeError: Attention has no keyword 'attn_mask'; {MASK}",
    "layer(x[:1], layer.start(2, 4))": "ValueError: the state has 2 rows, but x has 1; start a state for 1 rows",
    # the result
    "x + layer(x)": OUT,
    "layer(x) + x": OUT,
    "x - layer(x)": OUT,
    "layer(x) - x": OUT,
    "2 * layer(x)": OUT,
    "layer(x) * 0.5": OUT,
    "layer(x) / 2": OUT,
    "layer(x) @ x.mT": OUT,
    "nn.Sequential(nn.Linear(8, 8), layer, nn.Linear(8, 8))(x)": OUT,
    "torch.cat([x, layer(x)])": OUT,
    "layer(x).shape": "AttributeError: a layer returns Out, which has no 'shape'; write layer(x).y.shape",
    "model(ids).backward()": "AttributeError: a model returns Loss, which has no 'backward'; write loss.total.backward",
    "model(ids) / 4": LOSS,
    "model(ids) + model(ids)": LOSS,
    "sum([model(ids)])": LOSS,
    "0.5 * model(ids)": LOSS,
    "model.logits(ids).logits": "AttributeError: a layer returns Out, which has no 'logits'; its y has them",
    "model(ids).loss": "AttributeError: a model returns Loss, which has no 'loss'; write loss.total",
    # constructors
    "kf.QKV(8, num_heads=2)": "TypeError: QKV has no keyword 'num_heads'; use 'heads' instead",
    "kf.Softmax(mask=mask)": f"TypeError: Softmax has no keyword 'mask'; {MASK}",
    "kf.Softmax(causal=True)": "TypeError: Softmax has no keyword 'causal'; use 'pattern' instead: such as Causal()",
    "kf.Attention(kf.QKV(8, 2), kf.Softmax(kf.Causal()), dropout=0.1)": (
        "TypeError: Attention has no keyword 'dropout'; attention dropout is a keyword of the mechanism: "
        "Softmax(Causal(), dropout=0.1)"
    ),
    "kf.Attention(dim=8, heads=2)": (
        "TypeError: Attention has no keyword 'dim'; use 'projection' instead: write Attention(QKV(d, heads), "
        "Softmax(Causal()))"
    ),
    "kf.Band(window=3)": "TypeError: Band has no keyword 'window'; use 'left' instead",
    "kf.MLM(11, 8, layer, sgement=None)": "TypeError: MLM has no keyword 'sgement'; the nearest is 'segment'",
    "kf.MLM(11, 8, layer, attention_dropout=0.1)": (
        "TypeError: MLM has no keyword 'attention_dropout'; use 'dropout' instead"
    ),
    "kf.gpt(n_layer=2)": "TypeError: the member 'gpt' has no keyword 'n_layer'; use 'depth' instead",
    "kf.gpt(max_length=8)": "TypeError: the member 'gpt' has no keyword 'max_length'; use 'length' instead",
    "kf.Softmax(mask)": (
        "ValueError: pattern is of the type Tensor; give a pattern, such as Causal() & Band(64); a mask of padding "
        "goes to Context.of_sequence(x, mask)"
    ),
    "kf.Softmax(mask.numpy())": (
        "ValueError: pattern is of the type ndarray; give a pattern, such as Causal() & Band(64)"
    ),
    "kf.Softmax('Causal()')": (
        "ValueError: pattern is 'Causal()'; give a pattern, such as Causal() & Band(64), without quotes, because only "
        "members take a text"
    ),
    "kf.MultiheadAttention(16, 2)(x, x, x)": (
        "ValueError: the inputs have the wrong width: got query [2, 4, 8], key [2, 4, 8], value [2, 4, 8], expected "
        "16, 16, 16 numbers"
    ),
    "kf.look(layer.projection, 'text')": (
        "TypeError: wrong model for look: got <QKV>, expected a model of kinformer. Give kf.gpt(), or a model of "
        "kf.load(FOLDER)"
    ),
    "kf.Settings(learning_rate=1)": "TypeError: Settings has no keyword 'learning_rate'; use 'lr' instead",
    "kf.generate(model, {'input_ids': ids, 'attention_mask': ids - 4}, 5)": (
        "ValueError: row 0 of the prompt ends with padding; pad on the left, as a tokenizer of transformers does with "
        'padding_side="left"'
    ),
    "kf.Stack([nn.Linear(3, 3)])": f"ValueError: layers[0] is of the type Linear; {LAYER}",
    "kf.PreNorm(layer, nn.Linear(8, 8))": f"ValueError: layers[1] is of the type Linear; {LAYER}",
    "kf.Stack(['ab'])": f"ValueError: layers[0] is 'ab'; {LAYER}",
    "kf.Stack(layer)": "ValueError: layers is of the type Attention; give a list of layers, such as [layer]",
    "kf.Causal & kf.Band(3)": "TypeError: Causal is a class; write Causal(...) & Band(left=3, right=None)",
    "kf.Causal | kf.Band(3)": "TypeError: Causal is a class; write Causal(...) | Band(left=3, right=None)",
    "kf.Attention(kf.QKV(8, 2, rotation=kf.Rotary(16)), kf.Softmax(kf.Causal()))(x)": (
        "ValueError: Rotary(16) got heads of width 4, expected 16. Give Rotary(4), or turned= to turn only some "
        "dimensions"
    ),
    "kf.PreNorm(kf.MLP(8), norm=kf.RMSNorm(8))": (
        "ValueError: norm is a RMSNorm, expected a class: each sublayer has its own norm. Write norm=RMSNorm"
    ),
    "kf.Stack([layer], kf.RMSNorm)": "ValueError: norm is the class RMSNorm; give a norm, such as LayerNorm(d)",
    "kf.PreNorm(Bare())": "ValueError: layers[0] is a Bare without a width; set self.d to the width of x and y",
    "kf.PreNorm(Bare(8))(x)": "TypeError: Bare.forward returned Tensor, expected Out. Return kf.Out(y, state)",
    "kf.generate(kf.LM(10, 8, Shift()), ids, 2)": (
        "TypeError: Shift.forward got a state and returned none. Return kf.Out(y, state), and write start() if an "
        "output depends on earlier tokens"
    ),
    "type('Own', (kf.Layer,), {'forward': lambda self, x: x})": (
        "TypeError: Own has forward(self, x), expected a layer. Write forward(self, x, state, ctx) -> Out"
    ),
    "kf.LM(10, 8, layer, position=kf.Rotary(8))": (
        "ValueError: position is of the type Rotary; give a position, such as Learned(d). Rotary belongs to QKV"
    ),
    "kf.gpt(pattern=kf.Causal() & kf.Band(3))": (
        "TypeError: the keyword 'pattern' of 'gpt' must be str | tuple[str, ...], got (Causal() & Band(left=3, "
        "right=None)); write pattern='(Causal() & Band(left=3, right=None))'"
    ),
    "kf.gpt(pattern=['Causal()'])": (
        "TypeError: the keyword 'pattern' of 'gpt' must be str | tuple[str, ...], got ['Causal()']; write a tuple"
    ),
    # functions
    "kf.attend(x, x, x)": (
        "ValueError: attend needs q [B, H, T, K], k [B, G, S, K] and v [B, U, S, V], got q [2, 4, 8], k [2, 4, 8], "
        "v [2, 4, 8]; split the heads of [B, T, D] with x.unflatten(-1, (H, -1)).transpose(1, 2)"
    ),
    "kf.attend(q, q[:, :3], q[:, :3])": (
        "ValueError: 4 query heads cannot share 3 key heads evenly; make the first number a multiple of the "
        "second, or pass tensors [B, T, H, K] as x.transpose(1, 2)"
    ),
    "kf.ValueProjection(16, 4, value_heads=3)": (
        "ValueError: heads=4 is not a multiple of value_heads=3; change one of them"
    ),
    "kf.attend(q, q, q, attn_mask=mask)": (
        "TypeError: attend has no keyword 'attn_mask'; use 'k_pos' instead: -1 marks padding there, and pattern= "
        "chooses the keys"
    ),
    "kf.MultiheadAttention(8, 2, causal=True)": (
        "TypeError: MultiheadAttention has no keyword 'causal'; use 'pattern' instead: such as Causal()"
    ),
    "kf.MultiheadAttention(8, 2)(x, x, x, key_padding_mask=mask.T)": (
        "ValueError: key_padding_mask has the wrong shape: got [4, 2], expected [2, 4]. Inputs [T, B, E] need "
        "batch_first=False, inputs [B, T, E] the default True"
    ),
    "kf.save_attention_maps('run', 'maps.png')": (
        "TypeError: wrong attention maps: got 'run', expected the result of kf.look. Call "
        "save_attention_maps(kf.look(model, text), path)"
    ),
    "kf.load('runs', device_map='auto')": (
        "TypeError: load has no keyword 'device_map'; move models and tensors with .to(device)"
    ),
    "kf.generate(model, ids, max_new_tokens=5)": (
        "TypeError: generate has no keyword 'max_new_tokens'; use 'steps' instead"
    ),
    "kf.generate(model, ids, max_length=5)": (
        "TypeError: generate has no keyword 'max_length'; use 'steps' instead, which does not count the prompt"
    ),
    "kf.generate(model, ids, 5, device='cuda')": (
        "TypeError: generate has no keyword 'device'; move models and tensors with .to(device)"
    ),
    "kf.generate(model, ids, 5, do_sample=True)": (
        "TypeError: generate has no keyword 'do_sample'; temperature 0 takes the likeliest token, and any other "
        "temperature samples"
    ),
    "kf.generate(model, 'text', 5)": (
        "TypeError: the prompt is 'text', expected token ids [B, T]; encode text with list(text.encode())"
    ),
    "kf.generate(model, ids.float(), 5)": (
        "ValueError: the prompt has no token ids: got torch.float32, expected integers. Pass tokens.long()"
    ),
    "model('text')": (
        "TypeError: tokens are of type str, expected a tensor of integers [B, T]. Encode the text with "
        "model.tokenizer.encode(text), or list(text.encode()) for a model of bytes"
    ),
    "model(ids, ids)": (
        "TypeError: the state is of type Tensor, expected a state of model.start(rows, length). A model takes its "
        "targets from the tokens themselves: model(tokens).total"
    ),
    "model.logits(ids, model.start(2, 8))": (
        "ValueError: the state has 2 rows, but the tokens have 1; start a state for 1 rows"
    ),
    "pairs(ids, ids)": f"TypeError: wrong batch for an encoder-decoder: got Tensor, {PAIR}",
    "kf.generate(pairs, ids, 2)": (
        "ValueError: Seq2Seq got no source; give source=ids [R, S], with tokens=None to begin the target"
    ),
    "kf.generate(model, ids, 2, stop=[0, 1])": (
        "ValueError: wrong stop: got [0, 1], expected a token id, or a function of the new tokens [B, N] that "
        "says which rows have ended"
    ),
    "model(input_ids=ids)": "TypeError: LM has no keyword 'input_ids'; use 'batch' instead",
    "kf.fit(model, 'notes.txt', steps=1)": (
        "FileNotFoundError: there is no file or folder notes.txt; give the path of a file or folder, or text=PATH"
    ),
    "kf.fit(model, 'text=stdlib', epochs=3)": (
        "TypeError: fit has no keyword 'epochs'; use 'steps' instead: steps = epochs * training tokens / (batch * "
        "length)"
    ),
}


class Bare(kf.Layer):
    """A layer that returns a tensor, and has a width only if it is given."""

    def __init__(self, *d: int):
        super().__init__()
        if d:
            (self.d,) = d

    def forward(self, x: Any, state: Any, ctx: Any) -> Any:
        return x


class Shift(kf.Layer):
    """A layer that reads the token before each token, but keeps no state."""

    d = 8

    def forward(self, x: Any, state: Any, ctx: Any) -> kf.Out:
        return kf.Out(nn.functional.pad(x, (0, 0, 1, -1)))


def misuse() -> list[str]:
    x, ids = torch.randn(2, 4, 8), torch.tensor([[1, 2, 3, 4]])
    names: dict[str, Any] = {
        "kf": kf,
        "nn": nn,
        "torch": torch,
        "x": x,
        "ids": ids,
        "q": torch.randn(1, 4, 5, 6),
        "mask": torch.ones(2, 4, dtype=torch.bool),
        "layer": kf.Attention(kf.QKV(8, 2), kf.Softmax(kf.Causal())),
        "model": kf.gpt(d=8, depth=1, heads=2, vocab=10),
        "pairs": kf.transformer(d=8, depth=1, heads=2, vocab=10),
        "Bare": Bare,
        "Shift": Shift,
        "ctx": kf.Context.of_sequence(x),
    }
    return refusals([lambda call=call: eval(call, names) for call in CALLS])  # type: ignore[misc]


def test_misuse_is_refused_in_one_line_with_advice() -> None:
    texts = unhooked(f"{__name__}:{misuse.__name__}")
    for (call, advice), text in zip(CALLS.items(), texts, strict=True):
        assert text == advice, call


def test_an_out_remains_a_named_tuple() -> None:
    out = kf.Out(torch.zeros(2), state=())
    assert out[0] is out.y and out._replace(state=None).state is None and len(out) == 6 and not hasattr(out, "shape")
    assert isinstance(torch.utils._pytree.tree_map(lambda leaf: leaf + 1, out), kf.Out)
