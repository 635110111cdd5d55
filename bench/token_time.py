"""Where the time of a decoding step goes: matrix products, attention, cache, other operations, Python and sampling."""

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
from generation import SMOLLM2
from interleave import optional, setup
from torch.profiler import ProfilerActivity, profile
from training import VOCAB, Size, kinformer_gpt

import kinformer as kf
from kinformer.core.discover import find_member

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


def measure(model: Any, rounds: int) -> dict[str, float]:
    """Milliseconds per token: all of it, and the part of each kind of operation."""
    prompt = torch.randint(VOCAB, (1, PROMPT))

    def write() -> float:
        begin = time.perf_counter()
        kf.generate(model, prompt, STEPS, temperature=0, stop=-1)
        return (time.perf_counter() - begin) / STEPS * 1e3

    write()
    total = sorted(write() for _ in range(rounds))[rounds // 2]
    with profile(activities=[ProfilerActivity.CPU]) as found:
        write()
    kinds = {name: kind for kind, names in KINDS.items() for name in names}
    parts: Counter[str] = Counter()
    for event in found.key_averages():
        parts[kinds.get(event.key, "other operations")] += event.self_cpu_time_total / STEPS / 1e3
    return {"all": total, **{kind: parts[kind] for kind in (*KINDS, "other operations")}}


def main() -> None:
    rounds = setup(f"{__doc__} Batch 1, {STEPS} tokens after {PROMPT}, float32. Python is the rest.")
    print("| ms per token | all | " + " | ".join((*KINDS, "other operations", "Python")) + " |")
    print("|---" * (len(KINDS) + 4) + "|")
    for name, model in models().items():
        parts = measure(model, rounds)
        rest = parts["all"] - sum(parts[kind] for kind in parts if kind != "all")
        print(f"| {name} | " + " | ".join(f"{ms:.2f}" for ms in (*parts.values(), rest)) + " |", flush=True)


if __name__ == "__main__":
    main()
