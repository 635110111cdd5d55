"""Greedy generation against transformers: GPT-2 and a Llama of SmolLM2-135M's sizes, uncompiled and compiled."""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from interleave import optional, race, ready, report, setup_with_words
from jaxtyping import Int
from torch import Tensor, nn
from training import VOCAB, Size, hugging_face, kinformer_gpt

import kinformer as kf
from kinformer.decoding.compiled_steps import CompiledSteps

PROMPT = 16
GPT = tuple(Size(d=256, depth=4, heads=4, length=256, batch=batch) for batch in (1, 8))
SMOLLM2 = {
    "vocab_size": 49_152,
    "hidden_size": 576,
    "intermediate_size": 1_536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8_192,
    "tie_word_embeddings": True,
}


def measure(title: str, ours: Any, theirs: Any, vocab: int, batch: int, steps: int, rounds: int) -> None:
    prompt = torch.randint(vocab, (batch, PROMPT))
    compiled = CompiledSteps(ours)

    def kinformer(compile: bool | CompiledSteps = False) -> Int[Tensor, "B N"]:
        return kf.generate(ours, prompt, steps, temperature=0, stop=-1, compile=compile)

    def transformers(**options: Any) -> Int[Tensor, "B N"]:
        # its model has no end-of-text token; the mask says that nothing is padding, which it would otherwise warn of
        mask = torch.ones_like(prompt)
        return theirs.generate(prompt, attention_mask=mask, do_sample=False, max_new_tokens=steps, **options)

    def transformers_in_one_thread() -> Int[Tensor, "B N"]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return transformers()
        finally:
            torch.set_num_threads(threads)

    def compiled_transformers() -> Int[Tensor, "B N"]:
        return transformers(cache_implementation="static", compile_config=compile_config())

    def read_weights() -> Tensor:
        """Read each weight once per token, as a step does that multiplies by each of them."""
        return torch.stack([weights.sum() for _ in range(steps)])

    weights = torch.cat([weight.detach().flatten() for weight in ours.parameters()])
    calls: dict[str, Callable[[], Tensor]] = {"kinformer": kinformer, "compiled": lambda: kinformer(compiled)}
    if theirs is not None:
        calls["transformers"] = transformers
        calls["transformers, one thread"] = transformers_in_one_thread
        calls["transformers, compiled"] = compiled_transformers
    for name, call in calls.items():
        shape = tuple(call().shape)
        assert shape == (batch, PROMPT + steps), f"{name} wrote {shape}"
    assert torch.equal(kinformer(), kinformer(compiled)), "compiled steps write other tokens"
    seconds = race({name: ready(call) for name, call in {**calls, "floor": read_weights}.items()}, rounds)
    report(f"{title}, batch {batch}", seconds, batch * steps, steps)
    if theirs is not None:
        of_compiled = {name: seconds[name] for name in ("compiled", "transformers", "transformers, compiled")}
        report(f"{title}, batch {batch}, compiled", of_compiled, batch * steps, steps)
    assert compiled.times is not None
    print(f"Compilation {compiled.times.compilation:.0f} s, paid after {compiled.times.break_even:,.0f} tokens.\n")


def compile_config() -> Any:
    """The options with which transformers compiles a step to one graph; the private flag allows it on CPUs."""
    from transformers import CompileConfig

    config = CompileConfig(fullgraph=True, dynamic=False, mode="default")
    config._compile_all_devices = True
    return config


def llamas() -> tuple[nn.Module, Any] | None:
    """A Llama with random weights of SmolLM2-135M's sizes, in kinformer and in transformers."""
    library = optional("transformers", "pip install transformers")
    if library is None:
        return None
    theirs = library.LlamaForCausalLM(library.LlamaConfig(**SMOLLM2)).eval()
    theirs.generation_config.eos_token_id = None
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return kf.load(folder), theirs


def main() -> None:
    rounds, names = setup_with_words(
        f"Greedy generation after a prompt of {PROMPT}, with a cache, float32.", "gpt or smollm2; default: both"
    )
    for size in GPT if not names or "gpt" in names else ():
        title = f"d {size.d}, depth {size.depth}, heads {size.heads}"
        measure(title, kinformer_gpt(size), hugging_face(size), VOCAB, size.batch, 200, rounds)
    if (not names or "smollm2" in names) and (pair := llamas()) is not None:
        for batch in (1, 8):
            measure("SmolLM2-135M's sizes", *pair, SMOLLM2["vocab_size"], batch, 40, rounds)


if __name__ == "__main__":
    main()
