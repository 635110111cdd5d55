"""GGUF files of llama.cpp: config, dequantised weights and tokenizer in one file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinformer.bridge.family import family_of
from kinformer.bridge.gguf_tokenizer import gguf_special_tokens, gguf_tokenizer
from kinformer.bridge.hf_folder import FAULTS, build, set_tokenizer
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.core.missing_path import missing_path
from kinformer.core.quote import quote, shorten
from kinformer.nn.positions.sinusoidal import angular
from kinformer.nn.scalings.llama3 import Llama3Scaling

KEYS = {  # keys of GGUF after the name of the architecture, and of transformers
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
SCALING = "rope.scaling."
SCALING_KEYS = {"factor": "factor", "original_context_length": "original_max_position_embeddings"}
NO_EFFECT = (SCALING + "finetuned",)
FREQUENCIES = "rope_freqs.weight"  # for each pair of dimensions, how much slower Llama 3.1 and later turn it
REPEATED = ("attention.value_length", "rope.dimension_count")  # must be equal to the width of a head
TENSORS = {  # names of GGUF and of transformers, without ".weight" and ".bias"
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
LLAMA3_LENGTH = 8192  # rows of the first training of Llama 3
ARCHITECTURES = ("llama", "qwen2", "qwen3")
ORIGINAL = "Give the original folder of transformers"


def load_gguf(path: Path) -> Any:
    """Return the model of a GGUF file, in eval mode, with its weights dequantised to float32.

    Llama, Mistral, Qwen2 and Qwen3 are read. The model has the file's tokenizer if it is SentencePiece, or byte-level
    BPE with a known way to cut texts. Otherwise a warning says that the model takes and gives only token ids.

    path: the file.

    Errors: ImportError without the package gguf; FileNotFoundError; CheckpointError, in one line, for a damaged file,
    another architecture, or a key that changes results and is not understood.
    """
    try:
        from gguf import GGUFReader, quants
    except ImportError as error:
        raise ImportError(
            f"{path} needs the package gguf, which is not installed; run `pip install '.[hf]'` in kinformer's folder"
        ) from error
    if not path.is_file():
        raise FileNotFoundError(missing_path(path))
    try:
        file = GGUFReader(path)
        facts = {name: field.contents() for name, field in file.fields.items()}
    except Exception as error:  # the package raises what the first wrong byte leads to
        raise CheckpointError(f"{path} is damaged or no GGUF file: {error}") from error
    try:
        config = _config(facts)
        weights = {}
        for part in file.tensors:
            try:
                numbers = quants.dequantize(part.data, part.tensor_type)
            except NotImplementedError as error:
                raise CheckpointError(
                    f"{part.name} is quantised as {part.tensor_type.name}, which the package gguf cannot read. "
                    f"{ORIGINAL}"
                ) from error
            weights[part.name] = torch.from_numpy(numbers.copy())
        if (factors := weights.pop(FREQUENCIES, None)) is not None:
            config["rope_scaling"] = _llama3_scaling(factors, config)
        config["tie_word_embeddings"] = "output.weight" not in weights
        model = build(family_of(config["model_type"]), config, _renamed(weights, config))
        set_tokenizer(model, gguf_tokenizer(facts, path), gguf_special_tokens(facts))
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except FAULTS as error:  # keys and names of tensors may have any value
        reason = shorten(f"{type(error).__name__}: {error}", 200)
        raise CheckpointError(f"{path} is damaged, or of an unknown form: {reason}. {ORIGINAL}") from error
    return model


def _config(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of transformers for the facts of a GGUF file."""
    kind = facts.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise CheckpointError(
            f"the architecture {quote(kind)} is not read from GGUF, only {', '.join(ARCHITECTURES)}. {ORIGINAL}"
        )
    own = {name.removeprefix(f"{kind}."): value for name, value in facts.items() if name.startswith(f"{kind}.")}
    width = own.get("attention.key_length", own.get("embedding_length", 0) // own.get("attention.head_count", 1))
    scaling = _scaling(own)
    for name, value in own.items():
        if name not in (*KEYS, *scaling.used, *NO_EFFECT) and not (name in REPEATED and value == width):
            raise CheckpointError(
                f"the file has {kind}.{name}={quote(value)}, which kinformer does not read. {ORIGINAL}"
            )
    config: dict[str, Any] = {theirs: own[name] for name, theirs in KEYS.items() if name in own}
    config.setdefault("vocab_size", len(facts.get("tokenizer.ggml.tokens", ())))
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    return {"model_type": kind, "head_dim": width, **config, "rope_scaling": scaling.parameters}


class _Scaling(NamedTuple):
    """The scaling of RoPE in a file: its parameters for transformers, and the keys that have been read."""

    parameters: dict[str, Any] | None
    used: tuple[str, ...]


def _scaling(own: Mapping[str, Any]) -> _Scaling:
    """Return the scaling of RoPE; keys of other types than linear and yarn are not read."""
    rope_type = own.get(SCALING + "type")
    if rope_type == "none":
        return _Scaling(None, (SCALING + "type",))
    if rope_type not in ("linear", "yarn"):
        return _Scaling(None, ())
    names = {key: theirs for key, theirs in SCALING_KEYS.items() if key == "factor" or rope_type == "yarn"}
    values = {theirs: own[SCALING + key] for key, theirs in names.items() if SCALING + key in own}
    return _Scaling({"rope_type": rope_type, **values}, (SCALING + "type", *(SCALING + key for key in SCALING_KEYS)))


def _llama3_scaling(factors: Tensor, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of RoPE for the factors of a file of Llama 3.1 to 3.3, which does not name them."""
    factor, base = float(factors.max()), float(config.get("rope_theta", 10000.0))
    turns = angular(config["head_dim"], torch.float64, torch.device("cpu"), base)
    expected = turns / Llama3Scaling(max(factor, 1.0), length=LLAMA3_LENGTH).scale(turns, base)
    if factors.shape != expected.shape or not torch.allclose(factors.double(), expected, rtol=1e-4):
        raise CheckpointError(f"the file has {FREQUENCIES}, expected the factors of Llama 3.1 to 3.3. {ORIGINAL}")
    ends = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": LLAMA3_LENGTH}
    return {"rope_type": "llama3", "factor": factor, **ends}


def _renamed(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return tensors by the names of transformers, with the dimensions of Llama's heads in its order.

    llama.cpp stores pairs of dimensions that rotate together side by side; transformers stores them half a head apart.
    """
    renamed = {}
    for name, tensor in weights.items():
        *block, part, kind = name.split(".")
        if part not in TENSORS:
            raise CheckpointError(f"the file has the tensor {name}, which kinformer does not read. {ORIGINAL}")
        if config["model_type"] == "llama" and part in ("attn_q", "attn_k"):
            pairs = tensor.unflatten(0, (-1, config["head_dim"] // 2, 2))
            tensor = pairs.transpose(1, 2).reshape(tensor.shape)
        layer = f"model.layers.{block[1]}." if block else ""
        renamed[f"{layer}{TENSORS[part]}.{kind}"] = tensor
    return renamed
