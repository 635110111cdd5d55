"""A training step of gpt against a bare loop, Hugging Face's GPT-2 and x-transformers."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from interleave import Contender, optional, race, ready, report, setup
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from kinformer.members.gpt import gpt
from kinformer.models.lm import LM

VOCAB = 256


class Size(NamedTuple):
    """The shape of a model and of what it reads."""

    d: int
    depth: int
    heads: int
    length: int
    batch: int


SIZES = (Size(256, 4, 4, 256, 8), Size(256, 6, 4, 512, 8))


class Block(nn.Module):
    """A pre-norm block as nanoGPT writes it: one matrix for q, k and v, PyTorch's fused attention, tanh's gelu."""

    def __init__(self, d: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        batch, length, d = x.shape
        # [B T 3D] -> q, k, v of [B H T K]
        q, k, v = (
            z.view(batch, length, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(d, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, length, d))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Bare(nn.Module):
    """GPT without a library, in nanoGPT's manner: learned positions, a final norm, a head that is the embedding."""

    def __init__(self, size: Size):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, size.d), nn.Embedding(size.length, size.d)
        self.blocks = nn.ModuleList(Block(size.d, size.heads) for _ in range(size.depth))
        self.norm = nn.LayerNorm(size.d)
        self.head = nn.Linear(size.d, VOCAB, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def kinformer_gpt(size: Size) -> LM:
    """The member, as anyone would call it."""
    return gpt(d=size.d, depth=size.depth, heads=size.heads, length=size.length, vocab=VOCAB)


def hugging_face(size: Size) -> nn.Module | None:
    """GPT2LMHeadModel without dropout, with PyTorch's fused attention and gelu (gelu_new, its default, is slower)."""
    library = optional("transformers", "pip install -c constraints.txt -e '.[hf]'")
    if library is None:
        return None
    config = library.GPT2Config(
        vocab_size=VOCAB,
        n_positions=size.length,
        n_embd=size.d,
        n_layer=size.depth,
        n_head=size.heads,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )
    return library.GPT2LMHeadModel(config)


def x_transformers(size: Size) -> nn.Module | None:
    """The nearest that x-transformers has: its attention and its norms have no biases."""
    library = optional("x_transformers", "pip install -c constraints.txt x-transformers")
    if library is None:
        return None
    layers = library.Decoder(
        dim=size.d,
        depth=size.depth,
        heads=size.heads,
        attn_dim_head=size.d // size.heads,
        attn_flash=True,
        ff_custom_activation=nn.GELU(approximate="tanh"),
    )
    return library.TransformerWrapper(num_tokens=VOCAB, max_seq_len=size.length, attn_layers=layers, tie_embedding=True)


def stepping(model: nn.Module, loss: Callable[[Tensor], Tensor], batch: Int[Tensor, "B T"]) -> Contender:
    """A contender of one step: forward, backward, AdamW."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> None:
        optimiser.zero_grad()
        loss(batch).backward()
        optimiser.step()

    return ready(step)


def nll(logits: Callable[[Tensor], Tensor], batch: Int[Tensor, "B T"]) -> Tensor:
    """The mean negative log-likelihood of each token after those before it."""
    return F.cross_entropy(logits(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def measure(size: Size, rounds: int) -> None:
    ours, bare = kinformer_gpt(size), Bare(size)
    theirs, other = hugging_face(size), x_transformers(size)
    counts = parameters(ours), parameters(bare)
    assert counts[0] == counts[1], f"gpt has {counts[0]} parameters, the bare loop {counts[1]}"
    models: list[tuple[str, nn.Module, Callable[[Tensor], Tensor]]] = [
        ("kinformer", ours, lambda batch: ours(batch).total),
        ("bare loop", bare, partial(nll, bare)),
    ]
    if theirs is not None:
        models.append(("transformers", theirs, partial(nll, lambda tokens: theirs(tokens, use_cache=False).logits)))
    if other is not None:
        models.append(("x-transformers", other, partial(nll, other)))
    batch = torch.randint(VOCAB, (size.batch, size.length + 1))  # one token more than is read: the last target
    contenders = {f"{name}, {parameters(model):,}": stepping(model, loss, batch) for name, model, loss in models}
    title = f"d {size.d}, depth {size.depth}, heads {size.heads}, T {size.length}, batch {size.batch}; parameters"
    report(title, race(contenders, rounds), size.batch * size.length)


if __name__ == "__main__":
    rounds = setup("A training step (forward, backward, AdamW) of GPT-2 on random bytes, float32.")
    for size in SIZES:
        measure(size, rounds)
