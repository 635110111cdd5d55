"""GGUF files: equal logits with the dequantised weights in transformers, the tokenizer, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType
from gguf.quants import dequantize, quantize

import kinformer as kf
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.cli.__main__ import run
from tests.parity.peers import agree, shaken

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TOKENS = ["<|end|>", *LETTERS, "Ġ", "t" + "h", "the", "0", "1", "2"]
Q8 = GGMLQuantizationType.Q8_0


def peer(kind: str, **rope: Any) -> Any:
    config = transformers.AutoConfig.for_model(
        kind,
        vocab_size=len(TOKENS),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        rms_norm_eps=1e-2,
        rope_parameters={"rope_type": "default", "rope_theta": 77.0, **rope},
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    return shaken(transformers.AutoModelForCausalLM.from_config(config).eval())


def write(
    path: Path,
    model: Any,
    kind: str,
    quantised: bool = False,
    pre: str = "smollm",
    add: Callable[[GGUFWriter], None] = lambda file: None,
    **keys: Any,
) -> None:
    """Write a model as llama.cpp's converter does; quantised matrices replace those of the model."""
    config, file = model.config, GGUFWriter(path, kind)
    file.add_block_count(config.num_hidden_layers)
    file.add_context_length(50)
    file.add_embedding_length(config.hidden_size)
    file.add_feed_forward_length(config.intermediate_size)
    file.add_head_count(config.num_attention_heads)
    file.add_head_count_kv(config.num_key_value_heads)
    file.add_layer_norm_rms_eps(config.rms_norm_eps)
    file.add_rope_freq_base(config.rope_parameters["rope_theta"])
    add(file)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre(pre)
    file.add_token_list(TOKENS)
    file.add_token_types([3] + [1] * (len(TOKENS) - 1))
    file.add_token_merges(["t h", "th e"])
    for name, value in keys.items():
        file.add_float32(f"{kind}.{name.replace('__', '.')}", value)
    for name, weight in model.state_dict().items():
        *_, part, end = name.split(".")
        numbers = weight.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(part)
        if kind == "llama" and heads is not None:
            halves = numbers.reshape(heads, 2, numbers.shape[0] // heads // 2, *numbers.shape[1:])
            numbers = numpy.ascontiguousarray(halves.swapaxes(1, 2).reshape(numbers.shape))
        layer, _, rest = name.removeprefix("model.layers.").partition(".")
        theirs = f"blk.{layer}.{NAMES[rest.rpartition('.')[0]]}" if "layers" in name else NAMES[name.rpartition(".")[0]]
        if quantised and part in ("gate_proj", "v_proj"):
            packed = quantize(numbers, Q8)
            weight.copy_(torch.from_numpy(dequantize(packed, Q8)))
            file.add_tensor(f"{theirs}.{end}", packed, raw_dtype=Q8)
        else:
            file.add_tensor(f"{theirs}.{end}", numbers)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


@pytest.mark.parametrize(("kind", "quantised"), [("llama", True), ("qwen2", False)])
def test_logits_and_tokenizer(kind: str, quantised: bool, tmp_path: Path) -> None:
    theirs, path = peer(kind), tmp_path / "model.GGUF"
    write(path, theirs, kind, quantised)
    ours = kf.load(path)
    tokens = torch.randint(0, len(TOKENS), (2, 17))
    agree(ours.logits(tokens).y, theirs(tokens).logits)
    assert ours.trained_length == 50 and ours.tokenizer.encode("<|end|>the 12") == [0, 29, 27, 31, 32]
    kf.save(ours, tmp_path / "ours")
    assert torch.equal(kf.load(tmp_path / "ours").logits(tokens).y, ours.logits(tokens).y)
    assert run(["generate", str(path), "--prompt", "the", "--tokens", "2"]) == 0


def yarn(file: GGUFWriter) -> None:
    file.add_rope_scaling_type(RopeScalingType.YARN)
    file.add_rope_scaling_factor(4.0)
    file.add_rope_scaling_orig_ctx_len(16)
    file.add_rope_scaling_finetuned(True)


def linear(file: GGUFWriter) -> None:
    file.add_rope_scaling_type(RopeScalingType.LINEAR)
    file.add_rope_scaling_factor(4.0)


@pytest.mark.parametrize(
    ("add", "rope"),
    [
        (yarn, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
        (linear, {"rope_type": "linear", "factor": 4.0}),
        (lambda file: file.add_rope_scaling_type(RopeScalingType.NONE), {}),
    ],
)
def test_scaled_rotations_are_read(add: Callable[[GGUFWriter], None], rope: dict[str, Any], tmp_path: Path) -> None:
    theirs, path = peer("llama", **rope), tmp_path / "model.gguf"
    write(path, theirs, "llama", add=add)
    tokens = torch.randint(0, len(TOKENS), (2, 60))
    agree(kf.load(path).logits(tokens).y, theirs(tokens).logits)


def test_the_factors_of_llama_3_are_read_and_others_refused(tmp_path: Path) -> None:
    ends = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    theirs = peer("llama", rope_type="llama3", rope_theta=500000.0, factor=8.0, **ends)
    plain = 500000.0 ** (-numpy.arange(0, 16, 2) / 16)
    factors = (plain / theirs.model.rotary_emb.inv_freq.numpy()).astype(numpy.float32)
    assert factors.min() == pytest.approx(1) and factors.max() == pytest.approx(8)
    path = tmp_path / "model.gguf"
    write(path, theirs, "llama", add=lambda file: file.add_tensor("rope_freqs.weight", factors))
    tokens = torch.randint(0, len(TOKENS), (2, 60))
    ours = kf.load(path)
    agree(ours.logits(tokens).y, theirs(tokens).logits)
    assert ours.member.keywords["scaling"].startswith("llama3:factor=8")
    write(path, theirs, "llama", add=lambda file: file.add_tensor("rope_freqs.weight", factors[::-1].copy()))
    with pytest.raises(CheckpointError, match=r"rope_freqs.weight, expected the factors of Llama 3.1 to 3.3. Give"):
        kf.load(path)


def test_a_tokenizer_that_is_not_read_is_warned_of(tmp_path: Path) -> None:
    write(tmp_path / "model.gguf", peer("llama"), "llama", pre="tekken")
    with pytest.warns(UserWarning, match=r"tokenizer of model.gguf is not read \(model 'gpt2', pre 'tekken'\)"):
        model = kf.load(tmp_path / "model.gguf")
    assert model.tokenizer is None
    with pytest.raises(ValueError, match="cannot read text"):
        kf.score(model, "the")


def test_damaged_and_unknown_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(FileNotFoundError):
        kf.load(path)
    path.write_bytes(b"GGUF\x03\x00")
    with pytest.raises(CheckpointError, match="is damaged or no GGUF file"):
        kf.load(path)
    write(path, peer("llama"), "llama", rope__scaling__factor=2.0)
    with pytest.raises(
        CheckpointError, match=r"has llama.rope.scaling.factor=2.0, which kinformer does not read. Give"
    ):
        kf.load(path)
    write(path, peer("llama"), "mamba")
    with pytest.raises(CheckpointError, match="architecture 'mamba' is not read from GGUF, only llama, qwen2"):
        kf.load(path)


def renamed(old: str, new: str) -> Callable[..., tuple[Any, ...]]:
    return lambda name, *rest: (new if name == old else name, *rest)


@pytest.mark.parametrize(
    ("method", "change", "message"),
    [
        ("add_head_count", lambda heads: (0,), "ZeroDivisionError"),
        ("add_head_count", lambda heads: (3,), ""),
        ("add_head_count", lambda heads: ([heads, heads],), "TypeError"),
        ("add_token_merges", lambda merges: None, "KeyError: 'tokenizer.ggml.merges'"),
        ("add_token_merges", lambda merges: (["q zz"],), "`zz` out of vocabulary"),
        ("add_token_types", lambda types: (types[:-1],), "zip"),
        ("add_tensor", renamed("blk.0.attn_q.weight", "x.attn_q.weight"), "IndexError"),
        ("add_tensor", renamed("token_embd.weight", "token_embd"), "ValueError"),
    ],
)
def test_unusual_files_are_refused_in_one_line(
    method: str,
    change: Callable[..., tuple[Any, ...] | None],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = getattr(GGUFWriter, method)

    def add(file: GGUFWriter, *arguments: Any, **keywords: Any) -> None:
        if (changed := change(*arguments)) is not None:
            real(file, *changed, **keywords)

    monkeypatch.setattr(GGUFWriter, method, add)
    path = tmp_path / "model.GGUF"
    write(path, peer("llama"), "llama")
    with pytest.raises(CheckpointError) as error:
        kf.load(path)
    text = str(error.value)
    assert text.startswith(f"{path} is damaged, or of an unknown form: ") and message in text and "\n" not in text
    assert text.endswith("Give the original folder of transformers")
