"""Where the time of a decoding step goes: by kind of operation, and by layer."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

import torch
from generation import SMOLLM2
from interleave import optional, setup
from torch import nn
from torch.profiler import ProfilerActivity, profile
from training import VOCAB, Size, kinformer_gpt

import kinformer as kf
from kinformer.core.discover import find_member
from kinformer.core.residual_block import ResidualBlock
from kinformer.nn.attention import Attention

PROMPT, STEPS = 16, 100
SIZE: Mapping[str, object] = {"d": 256, "depth": 4, "heads": 4}
KINDS = {
    "products": ("aten::addmm", "aten::mm", "aten::bmm", "aten::addmv", "aten::mv", "aten::dot", "aten::baddbmm"),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_softmax"),
    "cache": ("aten::copy_", "aten::cat", "aten::scatter_", "aten::slice_scatter", "aten::narrow", "aten::slice"),
    "norms and activations": ("aten::native_layer_norm", "aten::gelu", "aten::silu", "aten::rsqrt", "aten::pow"),
}


def models() -> dict[str, Any]:
    """Models by name: two kinds of cache of all keys, a window, a linear state, and SmolLM2-135M's sizes."""
    made: dict[str, Any] = {
        "gpt": kinformer_gpt(Size(d=256, depth=4, heads=4, length=256, batch=1)),
        "llama": find_member("llama")(**SIZE, vocab=VOCAB),
        "longformer_lm": find_member("longformer_lm")(**SIZE, vocab=VOCAB),
        "linear_transformer": find_member("linear_transformer")(**SIZE, vocab=VOCAB, length=256),
    }
    if (library := optional("transformers", "pip install transformers")) is not None:
        with tempfile.TemporaryDirectory() as folder:
            library.LlamaForCausalLM(library.LlamaConfig(**SMOLLM2)).save_pretrained(folder)
            made["SmolLM2-135M's sizes"] = kf.load(folder)
    return made


def write(model: Any) -> float:
    """Milliseconds per token."""
    prompt, begin = torch.randint(VOCAB, (1, PROMPT)), time.perf_counter()
    kf.generate(model, prompt, STEPS, temperature=0, stop=-1)
    return (time.perf_counter() - begin) / STEPS * 1e3


def times_by_kind(model: Any, rounds: int) -> dict[str, float]:
    """Milliseconds per token: all of it, the part of each kind of operation, and the rest, which is Python."""
    write(model)
    total = median(write(model) for _ in range(rounds))
    with profile(activities=[ProfilerActivity.CPU]) as found:
        write(model)
    kinds = {name: kind for kind, names in KINDS.items() for name in names}
    parts = dict.fromkeys((*KINDS, "other operations"), 0.0)
    for event in found.key_averages():
        parts[kinds.get(event.key, "other operations")] += event.self_cpu_time_total / STEPS / 1e3
    return {"all": total, **parts, "Python": total - sum(parts.values())}


def times_by_layer(model: Any) -> dict[str, float]:
    """Milliseconds per token in all attention layers, in the others of the blocks, and outside of the model."""
    begun: dict[nn.Module, float] = {}
    parts: Counter[str] = Counter()

    def begin(module: nn.Module, inputs: object) -> None:
        begun[module] = time.perf_counter()

    def end(module: nn.Module, inputs: object, output: object) -> None:
        name = "attention layers" if isinstance(module, Attention) else "feed-forward layers"
        parts[name] += (time.perf_counter() - begun[module]) / STEPS * 1e3

    def logits(*inputs: Any, **options: Any) -> Any:
        start = time.perf_counter()
        try:
            return read(*inputs, **options)
        finally:
            parts["model"] += (time.perf_counter() - start) / STEPS * 1e3

    layers = [layer for block in model.modules() if isinstance(block, ResidualBlock) for layer in block.layers]
    hooks = [hook for x in layers for hook in (x.register_forward_pre_hook(begin), x.register_forward_hook(end))]
    read, model.logits = model.logits, logits
    try:
        total = write(model)
    finally:
        del model.logits
        for hook in hooks:
            hook.remove()
    inside = parts["attention layers"] + parts["feed-forward layers"]
    return {
        "all": total,
        "attention layers": parts["attention layers"],
        "feed-forward layers": parts["feed-forward layers"],
        "embedding, norms, head": parts["model"] - inside,
        "sampling and rows": total - parts["model"],
    }


def print_row(cells: Iterable[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    rounds = setup(f"{__doc__} Batch 1, {STEPS} tokens after {PROMPT}, float32.")
    made = models()
    for measure in (lambda model: times_by_kind(model, rounds), times_by_layer):
        for number, (name, model) in enumerate(made.items()):
            parts = measure(model)
            if not number:
                print_row(["ms per token", *parts])
                print_row(["---"] * (len(parts) + 1))
            print_row([name, *(f"{ms:.2f}" for ms in parts.values())])
        print()


if __name__ == "__main__":
    main()
