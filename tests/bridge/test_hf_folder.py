"""Folders of transformers: shards, dtypes, tokenizers, models without a head, and everything that is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import kinformer as kf
from kinformer.checkpoint.model_files import CheckpointError
from kinformer.cli.__main__ import run
from tests.bridge.test_decoders import VOCAB, loaded, peer
from tests.parity.peers import agree


def changed(folder: Path, **keys: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_shards_and_dtype(tmp_path: Path) -> None:
    theirs = peer("llama", torch.bfloat16)
    theirs.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2 and not (tmp_path / "model.safetensors").exists()
    ours = kf.load(tmp_path)
    assert {weight.dtype for weight in ours.parameters()} == {torch.bfloat16} and not ours.training
    tokens = torch.randint(0, VOCAB, (2, 9))
    agree(ours.logits(tokens).y, theirs(tokens).logits, 0.05)
    assert ours.trained_length == 32


def test_weights_of_several_dtypes_get_the_dtype_of_the_config_or_the_widest(tmp_path: Path) -> None:
    sizes = {"vocab_size": 19, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 1, "num_heads": 2}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))
    model.save_pretrained(tmp_path)
    half = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.float16)
    half.save_pretrained(tmp_path)
    dtypes = {weight.dtype for weight in load_file(tmp_path / "model.safetensors").values()}
    assert dtypes == {torch.float16, torch.float32}
    source, target = torch.tensor([[2, 3, 1]]), torch.tensor([[0, 3]])
    with torch.no_grad():
        want = half(input_ids=source, decoder_input_ids=target).logits
    for dtype, expected in (("float16", torch.float16), ("bfloat16", torch.bfloat16), (None, torch.float32)):
        changed(tmp_path, dtype=dtype)
        logits = kf.load(tmp_path).logits(target, source=source).y
        assert logits.dtype == expected
        agree(logits.to(want.dtype), want, 0.02)
    changed(tmp_path, dtype="int8")
    with pytest.raises(CheckpointError, match="got dtype='int8', expected float64 or float32 or float16 or bfloat16"):
        kf.load(tmp_path)


def test_a_tied_head_of_another_dtype_is_equal_up_to_rounding(tmp_path: Path) -> None:
    peer("llama, odd", torch.float32).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    head = weights["model.embed_tokens.weight"].to(torch.bfloat16)
    save_file({**weights, "lm_head.weight": head}, path, {"format": "pt"})
    assert torch.equal(kf.load(tmp_path).embedding.weight, weights["model.embed_tokens.weight"])
    save_file({**weights, "lm_head.weight": head + 1}, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lm_head.weight differs from model.embed_tokens.weight, expected equal"):
        kf.load(tmp_path)


def test_a_further_name_of_a_key_is_read_if_both_are_equal(tmp_path: Path) -> None:
    theirs = peer("bloom")
    theirs.save_pretrained(tmp_path)
    sizes = {"n_embed": 24, "num_attention_heads": 4, "num_hidden_layers": 3}
    changed(tmp_path, **sizes, n_layer=None)
    assert kf.load(tmp_path).member.keywords["depth"] == 3
    changed(tmp_path, n_embed=48)
    with pytest.raises(CheckpointError, match="got n_embed=48, expected 24 as in hidden_size"):
        kf.load(tmp_path)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key != "hidden_size"}
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="cannot read the config: hidden_size is missing"):
        kf.load(tmp_path)


def test_a_model_without_its_head(tmp_path: Path) -> None:
    theirs = peer("gpt2")
    theirs.transformer.save_pretrained(tmp_path)
    assert not any(name.startswith("transformer.") for name in load_file(tmp_path / "model.safetensors"))
    tokens = torch.randint(0, VOCAB, (2, 9))
    agree(kf.load(tmp_path).logits(tokens).y, theirs(tokens).logits, 1e-6)


def test_a_loaded_model_is_saved_and_loaded_as_ours(tmp_path: Path) -> None:
    ours = loaded(peer("mistral"), tmp_path / "theirs")
    kf.save(ours, tmp_path / "ours")
    tokens = torch.randint(0, VOCAB, (2, 9))
    assert torch.equal(kf.load(tmp_path / "ours").logits(tokens).y, ours.logits(tokens).y)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model_type": "lama"}, "does not read models of type 'lama'; the nearest is 'llama'; it reads "),
        ({"attn_logit_cap": 30.0}, "attn_logit_cap=30.0, expected no such key for model_type 'llama'. Remove the"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "got rope_type='dynamic', expected"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "got rope_type='longrope', expected"),
        ({"hidden_act": "xielu"}, "hidden_act='xielu', expected 'silu' or"),
        ({"mlp_bias": True}, "got mlp_bias=True"),
        ({"num_attention_heads": 5}, "the config cannot be built: "),
        ({"num_attention_heads": 0}, "the config cannot be built: "),
        ({"hidden_size": "24"}, "the config cannot be built: "),
        ({"hidden_size": None}, "got hidden_size=None, expected a value. Run this model with transformers"),
        ({"num_hidden_layers": 4}, "cannot load the weights: model.layers.3."),
        ({"num_hidden_layers": 2}, "cannot load the weights: model.layers.2."),
        ({"intermediate_size": 41}, "have the wrong shape: got [40, 24], expected [41, 24]"),
    ],
)
def test_configs_that_would_change_results_are_refused_by_name(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    peer("llama").save_pretrained(tmp_path)
    changed(tmp_path, **keys)
    with pytest.raises(CheckpointError) as error:
        kf.load(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value) and str(tmp_path) in str(error.value)


def test_a_key_that_is_off_is_no_reason_to_refuse(tmp_path: Path) -> None:
    peer("llama").save_pretrained(tmp_path)
    changed(tmp_path, attn_logit_cap=None, _attn_implementation_autoset=True, rope_scaling=None)
    kf.load(tmp_path)


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _outside(folder: Path) -> None:
    _missing(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../secret.safetensors"}}')


def _lost_shard(folder: Path) -> None:
    _missing(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')


def _strange_head(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), "score.weight": torch.ones(2, 24)}, path, {"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_pickled, "only in pytorch_model.bin, a pickle, which can run code when it is opened"),
        (_missing, "there is no model.safetensors"),
        (_cut, "is truncated or not a safetensors file"),
        (_outside, "names a file outside of its folder"),
        (_lost_shard, "model-1.safetensors is missing, which"),
        (
            _strange_head,
            "score.weight belongs to a model with another head; kinformer reads only the language-modelling head (Ll",
        ),
    ],
)
def test_weights_that_cannot_be_read_are_refused(
    spoil: Callable[[Path], None], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    peer("llama").save_pretrained(tmp_path)
    spoil(tmp_path)
    capsys.readouterr()
    assert run(["generate", str(tmp_path), "--tokens", "2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("kinformer: ") and message in line


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 with a byte-level tokenizer, as save_pretrained writes them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("hub")
    letters = Tokenizer(models.BPE())
    letters.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    letters.train_from_iterator(["the cat sat on the mat. " * 20], trainer)
    size = letters.get_vocab_size()
    transformers.PreTrainedTokenizerFast(tokenizer_object=letters).save_pretrained(folder)
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = transformers.GPT2Config(vocab_size=size, n_embd=16, n_layer=2, n_head=2, n_positions=64, **ends)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def test_the_tokenizer_comes_along(hub: Path) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(hub)
    assert kf.load(hub).tokenizer.encode("the cat, é") == theirs("the cat, é")["input_ids"]


def test_commands_take_the_folder(hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "book.txt"
    text.write_text("the cat sat on the mat. " * 60)
    data = f"text={text},tokenizer={hub}"
    assert run(["generate", str(hub), "--prompt", "the cat", "--tokens", "5"]) == 0
    assert capsys.readouterr().out.startswith("the cat")
    assert run(["evaluate", str(hub), "--data", data]) == 0
    assert "bits per byte" in capsys.readouterr().out
    words = ["train", "gpt", "--data", data, "--from", str(hub), "--length", "16", "--batch", "2"]
    words += ["--out", str(tmp_path / "run")]
    assert run([*words, "--steps", "2"]) == 0
    assert "lr=5e-05, because the weights are pretrained; --lr sets another" in capsys.readouterr().err
    tuned = kf.load(tmp_path / "run")
    assert tuned.tokenizer.sha256 == kf.load(hub).tokenizer.sha256
    assert (tuned.trained_length, tuned.longest) == (64, 64)
    assert run([*words, "--steps", "3", "--resume"]) == 0
    kf.save(kf.load(hub), tmp_path / "own")  # the folder of kinformer says as much as the one of transformers
    words[words.index(str(hub))], words[-1] = str(tmp_path / "own"), str(tmp_path / "again")
    assert run([*words, "--steps", "2"]) == 0
    assert "lr=5e-05" in capsys.readouterr().err
    assert run([*words, "--steps", "2", "--overwrite", "--lr", "0.001"]) == 0
    assert "lr=" not in capsys.readouterr().err
