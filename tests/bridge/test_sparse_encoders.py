"""Longformer, BigBird and Nystromformer of transformers, read and written: equal logits, and everything refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

import kinformer as kf
from kinformer.bridge.family import NoFamily, families, native
from kinformer.checkpoint.model_files import CheckpointError
from tests.bridge.test_encoders import SPARSE, VOCAB
from tests.bridge.test_hf_folder import changed
from tests.parity.peers import agree, shaken

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "sep_token_id": 2,
}
ODD = {"vocab_size": 23, "intermediate_size": 30, "layer_norm_eps": 1e-2, "type_vocab_size": 3}
BIG_BIRD = {**SIZES, "block_size": 3, "num_random_blocks": 2}
NYSTROM = {**SIZES, "conv_kernel_size": 5}
LANDMARKS = {"num_landmarks": 4, "segment_means_seq_len": 20, "max_position_embeddings": 20}
TINY: dict[str, Any] = {"d": 8, "depth": 1, "heads": 2, "length": 16, "vocab": 11, "mask": 3}
BASE = {
    "architectures": ["AnyForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
}
SPARSE_LENGTH, FULL_LENGTH = (
    44,
    27,
)  # of BigBird: 15 blocks, the last one of two tokens; 9 blocks, which are read in full
CASES: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {  # with the lengths of rows
    "longformer": ("longformer", {**SIZES, "attention_window": 6}, (17, 12, 1)),
    "longformer, odd": ("longformer", {**SIZES, **ODD, "attention_window": [4, 8]}, (17, 12, 3)),
    "longformer, one layer": (
        "longformer",
        {**SIZES, "attention_window": [4], "num_hidden_layers": 1, "type_vocab_size": 1},
        (16, 16),
    ),
    "big_bird": ("big_bird", BIG_BIRD, (SPARSE_LENGTH, 31, FULL_LENGTH, 5)),
    "big_bird, odd": ("big_bird", {**BIG_BIRD, **ODD, "num_random_blocks": 1, "hidden_act": "gelu"}, (23, 22, 21, 1)),
    "big_bird, full": ("big_bird", {**BIG_BIRD, "attention_type": "original_full"}, (SPARSE_LENGTH, 3)),
    "nystromformer": ("nystromformer", {**NYSTROM, **LANDMARKS}, (20, 20)),
    "nystromformer, odd": (
        "nystromformer",
        {**NYSTROM, **ODD, **LANDMARKS, "hidden_act": "gelu", "max_position_embeddings": 23},
        (20,),
    ),
    "nystromformer, full": ("nystromformer", {**NYSTROM, "num_landmarks": 4, "segment_means_seq_len": 4}, (33, 4, 7)),
}


@pytest.fixture(autouse=True)
def softmax_in_the_dtype_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longformer's softmax of transformers is in float32; here it keeps float64, which can be compared in full."""

    def softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        return scores.softmax(dim)

    monkeypatch.setattr(F, "softmax", softmax)


def peer(case: str, dtype: torch.dtype = torch.float64, **keys: Any) -> Any:
    kind, known, _ = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **{"initializer_range": 0.3, **known, **keys})
    return shaken(transformers.AutoModelForMaskedLM.from_config(config).to(dtype).eval())


def logits_of(theirs: Any, tokens: Tensor, segment: Tensor) -> Tensor:
    """Their logits of the real tokens of all rows, each of which is read alone if some are padded.

    Reading a short row sets all later rows of a BigBird of theirs to full attention, so it is set back.
    """
    if (tokens >= 0).all():
        return theirs(input_ids=tokens, token_type_ids=segment).logits.flatten(0, 1)
    rows = []
    for row, kinds in zip(tokens, segment, strict=True):
        if theirs.config.model_type == "big_bird":
            theirs.bert.set_attention_type(theirs.config.attention_type)
        real = row >= 0
        rows.append(theirs(input_ids=row[real][None], token_type_ids=kinds[real][None]).logits[0])
    return torch.cat(rows)


def rows_of(case: str, vocab: int) -> Tensor:
    """Rows of the case's lengths, padded on the right."""
    lengths = CASES[case][2]
    tokens = torch.randint(3, vocab, (len(lengths), max(lengths)))
    return tokens.masked_fill(torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None], -1)


def test_every_family_of_sparse_encoders_has_a_case() -> None:
    assert {kind for kind, _, _ in CASES.values()} == SPARSE


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_each_row_alone_and_the_model_is_written(
    case: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    theirs = peer(case, dtype)
    theirs.save_pretrained(tmp_path)
    ours = kf.load(tmp_path)
    tokens = rows_of(case, ours.vocab)
    real, kinds = tokens >= 0, ours.kind.num_embeddings
    segment = torch.arange(tokens.shape[1]).expand_as(tokens) // 5 % kinds
    ctx = kf.Context.of_sequence(torch.zeros(*tokens.shape, 1), real).replace(labels={"segment": segment})
    want = logits_of(theirs, tokens, segment)
    agree(ours.logits(tokens, None, ctx).y[real], want)
    family, config = native(ours)
    assert family is families()[CASES[case][0]]
    written_config = transformers.AutoConfig.for_model(
        **{key: value for key, value in config.items() if key != "architectures"}
    )
    model = getattr(transformers, family.architecture)._from_config(written_config).to(dtype).eval()
    loading_info = model.load_state_dict(family.split(ours), strict=False)
    spare = ("decoder.bias", "decoder.weight", "pooler.weight", "pooler.bias")
    assert not loading_info.unexpected_keys and all(name.endswith(spare) for name in loading_info.missing_keys)
    agree(logits_of(model, tokens, segment), want)


def test_global_tokens_are_marked_in_the_call(tmp_path: Path) -> None:
    theirs = peer("longformer, odd")
    theirs.save_pretrained(tmp_path)
    ours, tokens = kf.load(tmp_path), rows_of("longformer, odd", 23)
    real, marked = tokens >= 0, torch.zeros(tokens.shape, dtype=torch.bool)
    marked[0, [0, 7, 16]] = marked[1, 3] = True  # and none in the last row
    read = {"input_ids": tokens.masked_fill(~real, 1), "attention_mask": real.long()}
    ctx = kf.Context.of_sequence(torch.zeros(*tokens.shape, 1), real)
    actual = ours.logits(tokens, None, ctx.replace(also=kf.Marked(marked))).y[real]
    agree(actual, theirs(**read, global_attention_mask=marked.long()).logits[real])
    agree(ours.logits(tokens, None, ctx).y[real], theirs(**read).logits[real])
    assert not torch.allclose(actual, ours.logits(tokens, None, ctx).y[real], rtol=1e-3)


def test_a_big_bird_of_theirs_agrees_on_padded_rows_that_end_in_the_last_block_of_the_batch(tmp_path: Path) -> None:
    """In shorter rows, their last global block is padding, and a batch decides whether short rows are read in full."""
    theirs = peer("big_bird")
    theirs.save_pretrained(tmp_path)
    ours, tokens = kf.load(tmp_path), torch.randint(3, VOCAB, (3, SPARSE_LENGTH))
    tokens[1, -1:] = tokens[2, -9:] = -1  # blocks of 3, and the last one has 2 tokens
    real = tokens >= 0
    actual, want = ours.logits(tokens).y, theirs(input_ids=tokens.clamp_min(0), attention_mask=real.long()).logits
    agree(actual[:2][real[:2]], want[:2][real[:2]])
    assert not torch.allclose(actual[2][real[2]], want[2][real[2]], rtol=1e-3)


def test_padding_changes_a_nystromformer_of_theirs_only() -> None:
    """Their convolution reads the values of padding, so only rows without padding can be compared."""
    theirs, tokens = peer("nystromformer, full"), torch.randint(3, VOCAB, (1, 9))
    read = {"input_ids": F.pad(tokens, (0, 3), value=1), "attention_mask": F.pad(torch.ones_like(tokens), (0, 3))}
    assert not torch.allclose(theirs(**read).logits[:, :9], theirs(input_ids=tokens).logits, rtol=1e-3)


@pytest.mark.parametrize("case", ["longformer", "big_bird", "nystromformer, full"])
def test_a_model_without_its_head_gives_hidden_states(case: str, tmp_path: Path) -> None:
    theirs, tokens = peer(case), torch.randint(3, VOCAB, (2, 16))
    theirs.base_model.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="the weights have no head"):
        ours = kf.load(tmp_path)
    ctx = kf.Context.of_sequence(torch.zeros(2, 16, 1))
    agree(ours.body(ours.embed_tokens(tokens, ctx), None, ctx).y, theirs.base_model(tokens).last_hidden_state)


@pytest.mark.parametrize(
    ("case", "keys", "message"),
    [
        ("longformer", {"attention_window": 2}, "attention_window=2, expected an even"),
        ("longformer", {"attention_window": [6, 7]}, "attention_window=[6, 7], expected"),
        ("longformer", {"attention_window": [4, 6]}, "expected windows that divide the largest"),
        ("longformer", {"attention_window": [6, 6, 6]}, "window=(3, 3, 3) has the wrong length: got 3, expected depth"),
        ("longformer", {"pad_token_id": 0}, "pad_token_id=0, expected 1"),
        ("longformer", {"hidden_act": "relu"}, "hidden_act='relu', expected 'gelu'"),
        ("longformer", {"attention_dilation": [2, 2]}, "attention_dilation=[2, 2], expected no such key"),
        ("longformer", {"type_vocab_size": 0}, "type_vocab_size=0, expected a whole"),
        ("big_bird", {"attention_type": "dense"}, "attention_type='dense', expected"),
        ("big_bird", {"num_random_blocks": 0}, "num_random_blocks=0, expected a whole"),
        ("big_bird", {"block_size": None}, "block_size=None, expected a value"),
        ("big_bird", {"use_bias": False}, "use_bias=False, expected True"),
        ("big_bird", {"rescale_embeddings": True}, "rescale_embeddings=True, expected"),
        ("big_bird", {"hidden_act": "relu"}, "hidden_act='relu', expected 'gelu' or"),
        ("big_bird", {"is_decoder": True}, "is_decoder=True, expected False"),
        ("nystromformer", {"segment_means_seq_len": 18}, "segment_means_seq_len=18, expected"),
        ("nystromformer", {"segment_means_seq_len": 24}, "or a multiple of it up to max_position_embeddings=20"),
        ("nystromformer", {"num_landmarks": 0}, "segment_means_seq_len=20, expected"),
        ("nystromformer", {"segment_means_seq_len": None}, "segment_means_seq_len=None, expected"),
        ("nystromformer", {"inv_coeff_init_option": True}, "inv_coeff_init_option=True, expected"),
        ("nystromformer", {"conv_kernel_size": 4}, "the config cannot be built: conv=4 is even"),
        ("nystromformer", {"landmark_kernel": 3}, "landmark_kernel=3, expected no such key"),
    ],
)
def test_configs_that_would_change_results_are_refused_by_name(
    case: str, keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    peer(case).save_pretrained(tmp_path)
    changed(tmp_path, **keys)
    with pytest.raises(CheckpointError) as error:
        kf.load(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conv", "nystromformer.encoder.layer.0.attention.self.conv.weight have the wrong shape: got [20], expected"),
        ("key", "key.weight and nystromformer.encoder.layer.0.attention.self.value.weight have the wrong shape: got"),
    ],
)
def test_tensors_with_other_axes_are_refused(name: str, message: str, tmp_path: Path) -> None:
    peer("nystromformer").save_pretrained(tmp_path)
    path, place = tmp_path / "model.safetensors", f"nystromformer.encoder.layer.0.attention.self.{name}.weight"
    weights = load_file(path)
    save_file({**weights, place: weights[place].flatten()}, path, {"format": "pt"})
    with pytest.raises(CheckpointError) as error:
        kf.load(tmp_path)
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: kf.longformer(**TINY), "cannot compute marked=1"),
        (lambda: kf.longformer(**TINY, marked=0, dilation=2), "cannot compute dilation=2"),
        (lambda: kf.longformer(**TINY, marked=0, window=1), "attention_window=2"),
        (lambda: kf.longformer(**TINY, marked=0, kinds=0), "type_vocab_size=0"),
        (lambda: kf.bigbird(**TINY, block=2, full_up_to=22), "cannot compute draw='past'"),
        (lambda: kf.bigbird(**TINY, block=2, draw="first", full_up_to=7), "cannot compute full_up_to=7"),
        (lambda: kf.bigbird(**TINY, block=2, draw="first", full_up_to=22, window=2), "cannot compute window=2"),
        (lambda: kf.nystromformer(**TINY, landmarks=4), "cannot compute form='paper'"),
        (lambda: kf.nystromformer(**TINY, landmarks=4, form="published", norms="head"), "cannot compute norms='head'"),
        (lambda: kf.nystromformer(**TINY, landmarks=9, form="published"), "cannot compute landmarks=9"),
        (lambda: kf.nystromformer(**TINY, landmarks=16, conv=None), "conv_kernel_size=None"),
    ],
)
def test_members_that_transformers_does_not_compute_are_refused(make: Any, message: str) -> None:
    with pytest.raises(NoFamily) as error:
        native(make())
    assert message in str(error.value)


def test_published_configs_are_understood() -> None:
    """Such as allenai/longformer-base-4096, google/bigbird-roberta-base and uw-madison/nystromformer-512."""
    shared = {"d": 768, "depth": 12, "heads": 12, "head_dim": None, "hidden": None}
    longformer = {
        **BASE,
        "attention_mode": "longformer",
        "attention_window": [512] * 12,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "ignore_attention_mask": False,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 4098,
        "model_type": "longformer",
        "pad_token_id": 1,
        "sep_token_id": 2,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    }
    keywords = {"window": (256,) * 12, "marked": 0, "length": 4096, "kinds": 1}
    sizes = {"vocab": 50265, "eps": 1e-5, "mask": 50264}
    assert families()["longformer"].read(longformer) == {**shared, **keywords, **sizes}
    big_bird = {
        **BASE,
        "attention_type": "block_sparse",
        "block_size": 64,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 4096,
        "model_type": "big_bird",
        "num_random_blocks": 3,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "rescale_embeddings": False,
        "sep_token_id": 66,
        "type_vocab_size": 2,
        "use_bias": True,
        "use_cache": True,
        "vocab_size": 50358,
    }
    keywords = {"block": 64, "keys": 3, "window": 1, "draw": "first", "tables": None, "form": "itc", "kinds": 2}
    sizes = {"vocab": 50358, "eps": 1e-12, "mask": 67, "length": 4096, "full_up_to": 704, "activation": "gelu_tanh"}
    assert families()["big_bird"].read(big_bird) == {**shared, **keywords, **sizes}
    nystromformer = {
        **BASE,
        "conv_kernel_size": 65,
        "hidden_act": "gelu_new",
        "inv_coeff_init_option": False,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 510,
        "model_type": "nystromformer",
        "num_landmarks": 64,
        "pad_token_id": 1,
        "segment_means_seq_len": 64,
        "type_vocab_size": 2,
        "vocab_size": 30000,
    }
    keywords = {
        "landmarks": 510,
        "form": "paper",
        "norms": None,
        "iterations": 6,
        "conv": 65,
        "length": 510,
        "kinds": 2,
    }
    sizes = {"vocab": 30000, "eps": 1e-5, "mask": 4, "activation": "gelu_tanh"}
    assert families()["nystromformer"].read(nystromformer) == {**shared, **keywords, **sizes}
