"""Encoder-decoders of transformers, read and written: equal logits, decoding and greedy text, and the way back."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import kinformer as kf
from kinformer.bridge.family import families, native
from kinformer.checkpoint.model_files import CheckpointError
from tests.bridge.test_hf_folder import changed
from tests.parity.peers import agree, shaken
from tests.parity.test_hf_marian import to_the_last_digit

VOCAB = 19
SIDES = {
    "vocab_size": VOCAB,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_position_embeddings": 40,
    "init_std": 0.3,
}
PAD = VOCAB - 1
OPUS = {
    **SIDES,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": PAD,
    "decoder_start_token_id": PAD,
    "bad_words_ids": [[PAD]],
}
T5 = {
    "vocab_size": VOCAB,
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "initializer_factor": 1.0,
}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "marian": ("marian", OPUS),
    "marian, odd": (
        "marian",
        {
            **OPUS,
            "encoder_layers": 3,
            "decoder_layers": 1,
            "activation_function": "relu",
            "scale_embedding": False,
            "tie_word_embeddings": False,
            "decoder_start_token_id": 3,
            "eos_token_id": 5,
            "bad_words_ids": None,
        },
    ),
    "bart": ("bart", {**SIDES, "forced_bos_token_id": 0}),
    "bart, odd": (
        "bart",
        {
            **SIDES,
            "encoder_layers": 1,
            "decoder_layers": 3,
            "activation_function": "gelu_new",
            "scale_embedding": True,
            "tie_word_embeddings": False,
        },
    ),
    "t5": ("t5", T5),
    "t5, odd": (
        "t5",
        {
            **T5,
            "d_kv": 10,
            "num_layers": 3,
            "num_decoder_layers": 1,
            "layer_norm_epsilon": 1e-2,
            "relative_attention_num_buckets": 6,
            "relative_attention_max_distance": 9,
            "feed_forward_proj": "gelu",
        },
    ),
    "t5, version 1.1": ("t5", {**T5, **GATED, "num_decoder_layers": 1}),
    "t5, silu": ("t5", {**T5, "feed_forward_proj": "gated-silu"}),
}
GENERATION = ("bad_words_ids", "forced_bos_token_id")


def peer(case: str, dtype: torch.dtype = torch.float64) -> Any:
    """A random model that says many tokens, with everything that configs keep out of its weights' way."""
    kind, keys = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **{key: keys[key] for key in keys if key not in GENERATION})
    model: Any = transformers.AutoModelForSeq2SeqLM.from_config(config)
    model.generation_config.update(**{key: keys.get(key) for key in GENERATION}, forced_eos_token_id=None)
    shaken(model.to(dtype).eval())
    with torch.no_grad():
        for name, table in model.named_parameters():
            if name.endswith("relative_attention_bias.weight"):
                table.normal_()
        if kind == "marian":
            to_the_last_digit(model.model.encoder.embed_positions.weight)
            to_the_last_digit(model.model.decoder.embed_positions.weight)
        if kind != "t5":
            model.final_logits_bias.normal_(std=0.2)
        # with gains of both signs, a tied head does not repeat a token for ever
        last = model.decoder if kind == "t5" else model.model.decoder.layers[-1]
        last.final_layer_norm.weight.normal_(std=3)
        shared = model.shared if kind == "t5" else model.model.shared
        if keys.get("tie_word_embeddings") is False:
            model.lm_head.weight = nn.Parameter(torch.randn_like(model.lm_head.weight))
            for side in (model.get_encoder(), model.get_decoder()):
                side.embed_tokens.weight = shared.weight
    return model


def loaded(model: Any, folder: Path) -> Any:
    model.save_pretrained(folder)
    return kf.load(folder)


def sources() -> Tensor:
    tokens = torch.randint(0, VOCAB - 1, (4, 13))
    for row, length in enumerate((13, 4, 1, 9)):
        tokens[row, length:] = -1
    return tokens


def reading(source: Tensor) -> dict[str, Tensor]:
    return {"input_ids": source.clamp_min(0), "attention_mask": (source >= 0).long()}


def test_every_family_of_encoder_decoders_has_a_case() -> None:
    members = {families()[kind].member for kind, _ in CASES.values()}
    assert {kind for kind, family in families().items() if family.member in members} == {
        kind for kind, _ in CASES.values()
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_logits_and_decoding_are_equal(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    theirs = peer(case, dtype)
    ours = loaded(theirs, tmp_path)
    source, target = sources(), torch.randint(0, VOCAB - 1, (4, 11))
    target[:, 0] = theirs.config.decoder_start_token_id
    want = theirs(**reading(source), decoder_input_ids=target).logits
    want = want[..., : ours.vocab]  # without an id that is never written
    # norms of T5 are in float32 whatever the model's dtype
    tolerance = 1e-6 if dtype == torch.float64 and case.startswith("t5") else None
    agree(ours.logits(target, source=source).y, want, tolerance)
    state, steps = ours.start(4, 11, dtype=dtype), []
    for n, part in enumerate(target.split([2, 1, 5, 3], 1)):
        out = ours.logits(part, state, source=None if n else source)
        state = out.state
        steps.append(out.y)
    agree(torch.cat(steps, 1), want, tolerance)


@pytest.mark.parametrize("case", CASES)
def test_greedy_text_is_equal(case: str, tmp_path: Path) -> None:
    theirs = peer(case)
    ours = loaded(theirs, tmp_path)
    source, opening = sources(), 1 if CASES[case][1].get("forced_bos_token_id") is None else 2
    rows = theirs.generate(**reading(source), max_new_tokens=19 + opening, do_sample=False, num_beams=1)[:, opening:]
    ended = (rows == theirs.config.eos_token_id).cumsum(1) - (rows == theirs.config.eos_token_id).long() > 0
    want = torch.full((4, 20), -1)
    want[:, : rows.shape[1]] = rows.masked_fill(ended, -1)
    assert torch.equal(kf.generate(ours, None, 20, source=source, temperature=0), want)
    assert len(want.unique()) > 2


@pytest.mark.parametrize("case", CASES)
def test_a_model_is_written_as_the_same_class(case: str, tmp_path: Path) -> None:
    theirs = peer(case)
    ours = loaded(theirs, tmp_path)
    family = native(ours)[0]
    assert family.model_type == CASES[case][0]
    config = family.write({**ours.member.defaults, **ours.member.keywords})
    again = {key: value for key, value in config.items() if key not in ("architectures", *GENERATION)}
    (tmp_path / "again").mkdir()
    transformers.AutoConfig.for_model(**again).save_pretrained(tmp_path / "again")
    save_file(family.split(ours), tmp_path / "again" / "model.safetensors", {"format": "pt"})
    model = getattr(transformers, family.architecture).from_pretrained(tmp_path / "again", dtype=theirs.dtype)
    source, target = sources(), torch.randint(0, VOCAB - 1, (4, 7))
    want = theirs(**reading(source), decoder_input_ids=target).logits
    if CASES[case][0] == "marian":
        to_the_last_digit(model.model.encoder.embed_positions.weight)
        to_the_last_digit(model.model.decoder.embed_positions.weight)
    agree(model(**reading(source), decoder_input_ids=target).logits, want, 1e-12)


def test_weights_of_the_class_without_a_head_are_read(tmp_path: Path) -> None:
    """bart-base was saved as a BartModel, with copies of its tied embeddings."""
    theirs = peer("bart")
    theirs.model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    copies = {f"{side}.embed_tokens.weight": weights["shared.weight"].clone() for side in ("encoder", "decoder")}
    save_file({**weights, **copies}, path, {"format": "pt"})
    theirs.final_logits_bias.zero_()
    source, target = sources(), torch.randint(0, VOCAB - 1, (4, 7))
    want = theirs(**reading(source), decoder_input_ids=target).logits
    agree(kf.load(tmp_path).logits(target, source=source).y, want, 1e-6)


@pytest.mark.parametrize("case", ["marian, odd", "bart", "t5"])
def test_the_loss_is_equal(case: str, tmp_path: Path) -> None:
    theirs = peer(case)
    ours = loaded(theirs, tmp_path)
    source, target = sources(), sources()[:, :6]
    opening = torch.tensor(ours.opening).expand(4, -1)
    read = torch.cat([opening, target.clamp_min(0)], 1)
    end = (target >= 0).sum(1, keepdim=True)
    labels = torch.cat([target, torch.full((4, 1), -1)], 1).scatter(1, end, ours.end)
    labels = torch.cat([torch.full((4, opening.shape[1] - 1), -1), labels], 1)
    logits = theirs(**reading(source), decoder_input_ids=read).logits
    want = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-1)
    agree(ours((source, target)).parts["nll"], want, 1e-6)


@pytest.mark.parametrize(
    ("case", "keys", "message"),
    [
        ("marian", {"share_encoder_decoder_embeddings": False}, "got share_encoder_decoder_embeddings=False"),
        ("marian", {"normalize_before": True}, "got normalize_before=True, expected"),
        ("marian", {"decoder_attention_heads": 2}, "decoder_attention_heads=2, expected 4"),
        ("marian", {"d_model": 27}, "got d_model=27, expected an even number"),
        ("marian", {"activation_function": "tanh"}, "got activation_function='tanh'"),
        ("marian", {"attention_window": 3}, "got attention_window=3, expected no such key"),
        ("bart", {"static_position_embeddings": True}, "got static_position_embeddings=True"),
        ("bart", {"eos_token_id": [1, 2]}, "got eos_token_id=[1, 2], expected"),
        ("bart", {"decoder_start_token_id": 40}, "the config cannot be built: begin=40"),
        ("t5", {"feed_forward_proj": "gated-tanh", "dense_act_fn": "tanh"}, "got feed_forward_proj='gated-tanh'"),
        ("t5", {"forced_bos_token_id": 3}, "got forced_bos_token_id=3"),
        ("t5", {"is_gated_act": True}, "cannot load the weights: encoder.block.0.layer.1.DenseReluDense.wi_0.weight"),
    ],
)
def test_what_would_change_results_is_refused_by_name(
    case: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    peer(case).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    changed(tmp_path, **keys)
    with pytest.raises(CheckpointError) as error:
        kf.load(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_absent_sizes_have_the_values_of_transformers(tmp_path: Path) -> None:
    theirs = peer("bart")
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    usual = transformers.BartConfig().decoder_attention_heads
    assert config.pop("decoder_attention_heads") != usual
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=f"decoder_attention_heads={usual}, expected"):
        kf.load(tmp_path)


def test_embeddings_that_are_not_shared_are_refused(tmp_path: Path) -> None:
    theirs = peer("bart, odd")
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), "model.decoder.embed_tokens.weight": torch.ones(VOCAB, 24)}, path, {"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r"model.decoder.embed_tokens.weight differs from model.shared.weight, exp"
    ):
        kf.load(tmp_path)
