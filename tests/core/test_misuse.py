"""Calls in the manner of other libraries: each is refused in one line that says what to write."""

from typing import Any

import torch
from torch import nn

import kinformer as kf
from tests.unhooked import refusals, unhooked

OUT = (
    "TypeError: a layer returns Out, which holds more than a tensor; use its value: layer(x).y; PlainLayer(layer) "
    "returns it, as nn.Sequential needs"
)
LOSS = "TypeError: a model returns Loss, which holds more than a tensor; use its value: model(batch).total"
OUTPUT = "TypeError: attend returns AttentionOutput, which holds more than a tensor; use its value: attend(...).y"
STATE = (
    "TypeError: the state is of type Tensor, expected the state of model.start(batch, length) or of the call before. "
    "The targets are the next tokens of each row, and -1 marks padding in the tokens"
)
JOINED = "pass the value of the other layer, out.y; Stack([...]) joins layers, as nn.Sequential joins modules"
MASK = "a pattern such as Causal() or PairMask(mask) chooses the keys; ctx=Context.of_sequence(x, mask) marks padding"
ROW = "pass a single row as x[None], and one token of each row as x[:, None]"
SHAPE = "expected a floating tensor [B, T, D]"
LAYER = (
    "give a layer, such as Attention(...), MLP(d) or a block of both; a subclass of Layer sets self.d, and its "
    "forward(x, state, ctx) returns Out(y, state)"
)
PAIR = "expected one tuple of source [B, S] and target [B, T]. Write model((source, target))"

CALLS = {
    # a layer's input
    "layer(x[..., :6])": "ValueError: Attention got x of shape [2, 4, 6], expected width d=8",
    "layer(x[..., 0], None, ctx)": f"ValueError: x has shape [2, 4], {SHAPE}; {ROW}",
    "layer(x[..., None], None, ctx)": (
        f"ValueError: x has shape [2, 4, 8, 1], {SHAPE}; join heads [B, H, T, K] as x.transpose(1, 2).flatten(2)"
    ),
    "layer('text')": f"ValueError: x is of type str, {SHAPE}; make it with torch.as_tensor(x)",
    "layer(x.numpy())": f"ValueError: x is of type ndarray, {SHAPE}; make it with torch.as_tensor(x)",
    "layer(ids)": f"ValueError: x is torch.int64 of shape [1, 4], {SHAPE}; embed token ids first, or pass x.float()",
    "layer(layer(x))": f"ValueError: x is of type Out, {SHAPE}; {JOINED}",
    # further arguments of other libraries
    "layer(x, x, x)": (
        "TypeError: Attention got queries, keys or values as further tensors, expected x, state and ctx. "
        "layer(x).y is self-attention; cross-attention reads ctx=Context.of_sequence(x, source=source)"
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
    "layer(x) * 2": OUT,
    "-layer(x)": OUT,
    "layer(x)[:, -1]": OUT,
    "0.5 * model(ids)": LOSS,
    "model(ids) / 4": LOSS,
    "sum([model(ids), model(ids)])": LOSS,
    "float(model(ids))": LOSS,
    "torch.stack([model(ids)])": LOSS,
    "model.logits(ids)[:, -1]": OUT,
    "kf.attend(q, q, q) * 2": OUTPUT,
    "torch.relu(kf.attend(q, q, q))": OUTPUT,
    "kf.attend(q, q, q).shape": (
        "AttributeError: attend returns AttentionOutput, which has no 'shape'; write attend(...).y.shape"
    ),
    "layer(x).shape": "AttributeError: a layer returns Out, which has no 'shape'; write layer(x).y.shape",
    "model(ids) + model(ids)": LOSS,
    "sum([model(ids)])": LOSS,
    "model.logits(ids).logits": (
        "AttributeError: a layer returns Out, which has no 'logits'; write model.logits(tokens).y"
    ),
    "model(ids).backward()": (
        "AttributeError: a model returns Loss, which has no 'backward'; write model(batch).total.backward"
    ),
    "model(ids).loss": "AttributeError: a model returns Loss, which has no 'loss'; write model(batch).total",
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
    "kf.RMSNorm(normalized_shape=8)": "TypeError: RMSNorm has no keyword 'normalized_shape'; use 'd' instead",
    "kf.RoPE": "AttributeError: kinformer has no public name 'RoPE'; use 'Rotary' instead",
    "kf.TransformerEncoderLayer": (
        "AttributeError: kinformer has no public name 'TransformerEncoderLayer'; use 'PreNorm' instead"
    ),
    "kf.Embedding": (
        "AttributeError: kinformer has no public name 'Embedding'; kinformer has none; use nn.Embedding, and "
        "Learned(d, length) for positions"
    ),
    "kf.Context(mask.long())": (
        "ValueError: positions are all 0 or 1, as in a mask; pass a mask to Context.of_sequence(x, mask.bool())"
    ),
    "kf.Context.of_sequence(x, attention_mask=mask)": (
        "TypeError: of_sequence has no keyword 'attention_mask'; use 'mask' instead: True at real tokens"
    ),
    "kf.Context.of_sequence(x, (x @ x.mT) > 0)": (
        "ValueError: mask must be bool of shape [2, 4], True at each real token, got torch.bool of shape [2, 4, 4]; "
        "PairMask(mask) takes a mask of pairs"
    ),
    "kf.Context.of_sequence(x, source=x[:1])": (
        "ValueError: source must be a tensor [B, S, D] for 2 rows, got [1, 4, 8]; give source="
    ),
    "kf.PlainLayer(kf.Attention(kf.QKV(8, 2), kf.Softmax(kf.Full()), cross=True))(x, source=x[..., 1:])": (
        "ValueError: the source has shape [2, 4, 7], expected width d=8; map it to this width by nn.Linear"
    ),
    "kf.PlainLayer(nn.Linear(8, 8))": (
        "ValueError: layer is of the type Linear; give a layer, such as Attention(QKV(d, heads), Softmax(Causal()))"
    ),
    "kf.PlainLayer(layer)(x, key_padding_mask=mask)": (
        "TypeError: PlainLayer has no keyword 'key_padding_mask'; use 'mask' instead: True at real tokens"
    ),
    "kf.Band(window=3)": "TypeError: Band has no keyword 'window'; use 'left' instead",
    "kf.MLM(11, 8, layer, sgement=None)": "TypeError: MLM has no keyword 'sgement'; the nearest is 'segment'",
    "kf.MLM(11, 8, layer, attention_dropout=0.1)": (
        "TypeError: MLM has no keyword 'attention_dropout'; use 'dropout' instead"
    ),
    "kf.gpt(n_layer=2)": "TypeError: the member 'gpt' has no keyword 'n_layer'; use 'depth' instead",
    "kf.gpt(max_length=8)": "TypeError: the member 'gpt' has no keyword 'max_length'; use 'length' instead",
    "kf.Softmax(mask)": (
        "ValueError: pattern is of the type Tensor; give a pattern, such as Causal() & Band(64); PairMask(mask) makes "
        "one of a mask of pairs; a mask of padding goes to Context.of_sequence(x, mask)"
    ),
    "kf.gpt(pattern=kf.Causal())": (
        "TypeError: the keyword 'pattern' of 'gpt' must be str | tuple[str, ...], got Causal(); write "
        "pattern='Causal()'"
    ),
    "kf.PreNorm(kf.MultiheadAttention(8, 2), layer)": (
        "ValueError: layers[0] is of the type MultiheadAttention; give Attention(QKV(d, heads), Softmax(Full()))"
    ),
    "kf.PreNorm(layer, norm=nn.LayerNorm(8))": (
        "ValueError: norm is of the type LayerNorm; give a class or a function of the width, such as norm=RMSNorm"
    ),
    "kf.PostNorm(layer, norm='rms')": (
        "ValueError: norm is 'rms'; give a class or a function of the width, such as norm=RMSNorm"
    ),
    "layer.mechanism(q, q, q)": (
        "TypeError: Softmax got Tensor, expected queries, keys, state and ctx of a layer. Call Attention(QKV(d, "
        "heads), mechanism)(x).y, or attend(q, k, v, pattern=...) for tensors"
    ),
    "kf.Softmax(mask.numpy())": (
        "ValueError: pattern is of the type ndarray; give a pattern, such as Causal() & Band(64)"
    ),
    "kf.Softmax('Causal()')": (
        "ValueError: pattern is 'Causal()'; give a pattern, such as Causal() & Band(64), without quotes, because only "
        "members take a text"
    ),
    "kf.MultiheadAttention(16, 2)(x, x, x)": (
        "ValueError: query has the wrong width: got query [2, 4, 8], key [2, 4, 8], value [2, 4, 8], expected "
        "embed_dim=16. Give both the same"
    ),
    "kf.look(layer.projection, 'text')": (
        "TypeError: wrong model for look: got <QKV>, expected a model of kinformer or of transformers, or a module "
        "with Attention layers. Give kf.gpt(), or a model of kf.load(FOLDER)"
    ),
    "kf.Settings(learning_rate=1)": "TypeError: Settings has no keyword 'learning_rate'; use 'lr' instead",
    "kf.generate(model, {'input_ids': ids, 'attention_mask': ids - 4}, 5)": (
        "ValueError: row 0 of the prompt ends with padding; pad on the left, as a tokenizer of transformers does with "
        'padding_side="left"'
    ),
    "kf.Stack([nn.Linear(3, 3)])": f"ValueError: layers[0] is of the type Linear; {LAYER}",
    "kf.PreNorm(layer, nn.Linear(8, 8))": f"ValueError: layers[1] is of the type Linear; {LAYER}",
    "kf.Stack(['ab'])": (
        "ValueError: layers[0] is 'ab'; give a layer, such as Attention(...), MLP(d) or a block of both"
    ),
    "kf.Stack(layer)": "ValueError: layers is of the type Attention; give a list of layers, such as [layer]",
    "kf.Causal & kf.Band(3)": "TypeError: Causal is a class; write Causal(...) & Band(left=3, right=None)",
    "kf.Causal | kf.Band(3)": "TypeError: Causal is a class; write Causal(...) | Band(left=3, right=None)",
    "kf.Attention(kf.QKV(8, 2, rotation=kf.Rotary(16)), kf.Softmax(kf.Causal()))(x)": (
        "ValueError: Rotary(16) got heads of width 4, expected 16. Give Rotary(4), or turned= to turn only some "
        "dimensions"
    ),
    "kf.PreNorm(kf.MLP(8), norm=kf.RMSNorm(8))": (
        "ValueError: norm is of the type RMSNorm; give a class or a function of the width, such as norm=RMSNorm"
    ),
    "kf.Stack([layer], kf.RMSNorm)": "ValueError: norm is the class RMSNorm; give a norm, such as LayerNorm(d)",
    "kf.PreNorm(Bare())": "ValueError: layers[0] is a Bare without a width; set self.d to the width of x and y",
    "kf.PreNorm(Bare(8))(x)": (
        "TypeError: Bare.forward or a hook of it returned Tensor, expected Out. Return kf.Out(y, state), or "
        "out._replace(y=tensor) in a hook"
    ),
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
    "kf.attend(q, q, q[:, :, 1:])": (
        "ValueError: attend needs q [B, H, T, K], k [B, G, S, K] and v [B, U, S, V], got q [1, 4, 5, 6], "
        "k [1, 4, 5, 6], v [1, 4, 4, 6]; give a value for each key"
    ),
    "kf.attend(q.repeat(2, 1, 1, 1), q, q)": (
        "ValueError: attend needs q [B, H, T, K], k [B, G, S, K] and v [B, U, S, V], got q [2, 4, 5, 6], "
        "k [1, 4, 5, 6], v [1, 4, 5, 6]; give all three the same batch B"
    ),
    "kf.attend(q.long(), q.long(), q.long())": (
        "ValueError: q is torch.int64, expected a floating tensor; pass q.float(), k.float() and v.float()"
    ),
    "kf.attend(q, q, q, attn_mask=mask)": (
        "TypeError: attend has no keyword 'attn_mask'; use 'k_pos' instead: -1 marks padding there; "
        "pattern=PairMask(mask) takes a mask of pairs, True where they are read"
    ),
    "kf.attend(q, q, q, mask)": ("TypeError: attend got 4 arguments without a name, expected q, k, v. Name the others"),
    "layer(x, None, ctx, mask)": (
        "TypeError: Attention got 4 arguments without a name, expected x, state, ctx. Name the others"
    ),
    "kf.attend(q, q, q, bias=q)": (
        "ValueError: bias is of the type Tensor; give a bias, such as ALiBi(heads), or AttentionMask(table) of numbers "
        "[B, H, T, S]"
    ),
    "kf.AttentionMask(mask)": (
        "ValueError: AttentionMask got torch.bool of shape [2, 4], expected numbers [B, H, T, S], or with size 1 for B "
        "or H. Give a boolean mask [B, T, S] as the pattern PairMask(mask)"
    ),
    "kf.attend(query=q, key=q, value=q)": "TypeError: attend has no keyword 'query'; use 'q' instead",
    "kf.attend(q, q, q, enable_gqa=True)": (
        "TypeError: attend has no keyword 'enable_gqa'; fewer key heads than query heads work without it"
    ),
    "layer(x, use_cache=True)": (
        "TypeError: Attention has no keyword 'use_cache'; a decoding state is the cache: state = start(batch, length), "
        "then pass it to each call"
    ),
    "kf.MultiheadAttention(8, 3)": "ValueError: embed_dim=8 is not a multiple of num_heads=3; change one of them",
    "kf.MultiheadAttention(8, 2, kf.Causal())": "ValueError: dropout=Causal(): give a number from 0 to 1",
    "kf.MultiheadAttention(8, 2)(x, x, x[..., 1:])": (
        "ValueError: value has the wrong width: got query [2, 4, 8], key [2, 4, 8], value [2, 4, 7], expected "
        "embed_dim=8. Give both the same"
    ),
    "kf.MultiheadAttention(8, 2, kdim=6)(x, x, x)": (
        "ValueError: key has the wrong width: got query [2, 4, 8], key [2, 4, 8], value [2, 4, 8], expected kdim=6. "
        "Give both the same"
    ),
    "kf.MultiheadAttention(8, 2)(x, x, x, attn_mask=kf.Causal())": (
        "ValueError: attn_mask is the pattern Causal(), expected a tensor. Give MultiheadAttention(..., "
        "pattern=Causal())"
    ),
    "kf.MultiheadAttention(8, 2)(x, x, x, mask=mask)": (
        "TypeError: MultiheadAttention has no keyword 'mask'; use 'attn_mask' instead: True at pairs that are not read"
    ),
    "kf.MultiheadAttention(8, 2)(x, x, x, attn_mask=(x @ x.mT) > 0)": (
        "ValueError: attn_mask has the wrong shape: got [2, 4, 4], expected [4, 4] or [4, 4, 4]. Repeat a mask of each "
        "row for all heads: attn_mask.repeat_interleave(num_heads, 0)"
    ),
    "kf.MultiheadAttention(8, 2, causal=True)": (
        "TypeError: MultiheadAttention has no keyword 'causal'; use 'pattern' instead: such as Causal()"
    ),
    "kf.MultiheadAttention(8, 2)(x, x, x, key_padding_mask=mask.T)": (
        "ValueError: key_padding_mask has the wrong shape: got [4, 2], expected [2, 4]. The mask is [B, S] in "
        "both layouts: inputs [B, S, E] need batch_first=True, inputs [S, B, E] batch_first=False"
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
    "model(ids, ids)": STATE,
    "model.logits(ids, model.start(2, 8))": (
        "ValueError: the state has 2 rows, but the tokens have 1; start a state for 1 rows"
    ),
    "pairs(ids, ids)": f"TypeError: wrong batch for an encoder-decoder: got Tensor, {PAIR}",
    "kf.load(nn.Linear(2, 3))": (
        "TypeError: load takes a folder or a name: got Linear(in_features=2, out_features=3, bias=True). Save a model "
        "of transformers with save_pretrained(FOLDER), then call load(FOLDER)"
    ),
    "kf.generate(pairs, ids, 2)": (
        "ValueError: Seq2Seq got no source; give source=ids [R, S], with tokens=None to begin the target"
    ),
    "kf.generate(model, ids, 2, stop={0: 1})": (
        "ValueError: wrong stop: got {0: 1}, expected a token id, several, or a function of the new tokens [B, N] that "
        "says which rows have ended"
    ),
    "model.logits(ids, mask)": STATE,
    "model((ids, ids))": (
        "TypeError: tokens are of type tuple, expected a tensor of integers [B, T]. Pass one tensor of it: the targets "
        "are the next tokens of each row"
    ),
    "model(ids.numpy())": (
        "TypeError: tokens are of type ndarray, expected a tensor of integers [B, T]. Make it with "
        "torch.as_tensor(tokens)"
    ),
    "model(ids.to(torch.uint8))": (
        "TypeError: tokens must be integers of 64 or 32 bits, got torch.uint8; convert them with .long()"
    ),
    "model.logits(ids[:, 0])": (
        "ValueError: tokens must be rows [B, T], got shape [1]; pass a single row as tokens[None], and one token of "
        "each row as tokens[:, None]"
    ),
    "model(kf.TokenBatch(ids, ids))": "TypeError: TokenBatch.scored is torch.int64, expected bool; call scored.bool()",
    "kf.transformer(d=8, depth=1, heads=2)(ids)": f"TypeError: wrong batch for an encoder-decoder: got Tensor, {PAIR}",
    "kf.set_transformer()(x)": (
        "TypeError: wrong batch for a model of sets: got Tensor, expected (elements [B, T, C], marks [B, T], answers "
        "[B]). Call predict(elements, marks) without answers"
    ),
    "kf.bert(d=8, depth=1, heads=2).generate(ids)": (
        "AttributeError: 'MLM' object has no attribute 'generate'; only a model that predicts the next token writes "
        "text, such as gpt"
    ),
    "model.num_parameters()": (
        "AttributeError: 'LM' object has no attribute 'num_parameters'; write sum(p.numel() for p in "
        "model.parameters())"
    ),
    "hooked(ids)": (
        "TypeError: Attention.forward or a hook of it returned Tensor, expected Out. Return kf.Out(y, state), or "
        "out._replace(y=tensor) in a hook"
    ),
    "kf.fit(model, 'text=stdlib', loss_fn=None)": (
        "TypeError: fit has no keyword 'loss_fn'; fit has AdamW and cross-entropy; docs/pytorch.md has a loop with an "
        "optimiser and a loss of your own"
    ),
    "model(input_ids=ids, position_ids=ids)": (
        "TypeError: LM has no keyword 'position_ids'; positions follow from attention_mask"
    ),
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
    hooked: Any = kf.gpt(d=8, depth=1, heads=2, vocab=10)
    hooked.body.layers[0].layers[0].register_forward_hook(lambda layer, inputs, out: out.y)
    names: dict[str, Any] = {
        "hooked": hooked,
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
    wrong = {call: text for (call, advice), text in zip(CALLS.items(), texts, strict=True) if text != advice}
    assert not wrong


def test_an_out_remains_a_named_tuple() -> None:
    out = kf.Out(torch.zeros(2), state=())
    assert out[0] is out.y and out._replace(state=None).state is None and len(out) == 6 and not hasattr(out, "shape")
    assert isinstance(torch.utils._pytree.tree_map(lambda leaf: leaf + 1, out), kf.Out)
