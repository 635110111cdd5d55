"""Encoders of transformers, read and written: equal logits, padding, segment types, and the way back."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import kinformer as kf
from kinformer.bridge.family import families, native
from kinformer.checkpoint.model_files import CheckpointError
from tests.bridge.test_hf_folder import changed
from tests.parity.peers import agree, shaken

VOCAB = 19
SPARSE = {"longformer", "big_bird", "nystromformer"}  # their cases are in test_sparse_encoders.py
BERT = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "max_position_embeddings": 34,
}
ODD = {"intermediate_size": 30, "layer_norm_eps": 1e-2, "type_vocab_size": 3}
DISTIL = {"vocab_size": VOCAB, "dim": 24, "n_layers": 3, "n_heads": 4, "hidden_dim": 30, "max_position_embeddings": 34}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", BERT),
    "bert, odd": ("bert", {**BERT, **ODD}),
    "roberta": ("roberta", {**BERT, "type_vocab_size": 1}),
    "roberta, odd": ("roberta", {**BERT, **ODD}),
    "distilbert": ("distilbert", DISTIL),
}


def peer(case: str) -> Any:
    kind, keys = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **{"initializer_range": 0.3, **keys})
    return shaken(transformers.AutoModelForMaskedLM.from_config(config).to(torch.float64).eval())


def test_every_family_of_encoders_has_a_case() -> None:
    encoders = {kind for kind, family in families().items() if family.architecture.endswith("MaskedLM")}
    assert encoders == {kind for kind, _ in CASES.values()} | SPARSE


@pytest.mark.parametrize("case", CASES)
def test_logits_and_segment_types_are_equal_and_the_model_is_written(case: str, tmp_path: Path) -> None:
    theirs = peer(case)
    theirs.save_pretrained(tmp_path)
    ours = kf.load(tmp_path)
    tokens = torch.randint(2, VOCAB, (3, 17))
    tokens[1, 12:] = tokens[2, 9:] = -1
    real = tokens >= 0
    read: dict[str, Any] = {"input_ids": tokens.clamp_min(1), "attention_mask": real.long()}
    segment = (torch.arange(17) > torch.tensor([[4], [9], [16]])).long()
    ctx = kf.Context.of_sequence(torch.zeros(3, 17, 1), real)
    if ours.kind is not None and ours.kind.num_embeddings > 1:
        read["token_type_ids"], ctx = segment, ctx.replace(labels={"segment": segment})
    want = theirs(**read).logits
    agree(ours.logits(tokens, None, ctx).y[real], want[real])
    family = families()[CASES[case][0]]
    config = family.write({**ours.member.defaults, **ours.member.keywords})
    written_config = transformers.AutoConfig.for_model(
        **{key: value for key, value in config.items() if key != "architectures"}
    )
    model = getattr(transformers, family.architecture)._from_config(written_config).to(torch.float64).eval()
    loading_info = model.load_state_dict(family.split(ours), strict=False)
    tied = ("decoder.bias", "decoder.weight", "projector.weight")
    assert not loading_info.unexpected_keys and all(name.endswith(tied) for name in loading_info.missing_keys)
    agree(model(**read).logits[real], want[real])


def test_a_model_without_its_head_gives_hidden_states(tmp_path: Path) -> None:
    theirs = peer("bert")
    theirs.bert.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match="have no head, so this model of type bert gives hidden states"):
        ours = kf.load(tmp_path)
    tokens = torch.randint(2, VOCAB, (3, 17))
    ctx = kf.Context.of_sequence(torch.zeros(3, 17, 1))
    hidden = ours.body(ours.embed_tokens(tokens, ctx), None, ctx).y
    agree(hidden, theirs.bert(tokens).last_hidden_state)
    ours.head.register_forward_hook(lambda *_: pytest.fail("the head was computed"))
    agree(ours(input_ids=tokens).last_hidden_state, theirs.bert(tokens).last_hidden_state)
    agree(ours.hidden(tokens).y, hidden)


def test_an_absent_head_has_the_same_numbers_in_every_load(tmp_path: Path) -> None:
    peer("bert").bert.save_pretrained(tmp_path)
    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        with pytest.warns(UserWarning, match="have no head"):
            models.append(kf.load(tmp_path))
        assert torch.equal(torch.get_rng_state(), state) and models[-1].headless
    for name, weight in models[0].state_dict().items():
        assert torch.equal(weight, models[1].state_dict()[name]), name
    assert models[0].transform[0].weight.std() > 0 and bool((models[0].transform[2].weight == 1).all())


@pytest.mark.parametrize("case", [case for case in CASES if "odd" not in case])
def test_norms_with_the_names_of_tensorflow_are_read(case: str, tmp_path: Path) -> None:
    """The weights of bert-base-uncased have them, and transformers renames them."""
    theirs = peer(case)
    theirs.save_pretrained(tmp_path)
    path, tokens = tmp_path / "model.safetensors", torch.randint(2, VOCAB, (2, 9))
    weights = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): weight
        for name, weight in load_file(path).items()
    }
    assert any(name.endswith("LayerNorm.gamma") for name in weights)
    save_file(weights, path, {"format": "pt"})
    want = type(theirs).from_pretrained(tmp_path, dtype=torch.float64).eval()(tokens).logits
    agree(kf.load(tmp_path).logits(tokens).y, want)


@pytest.mark.parametrize(("loader", "name"), [("bert", "BertForMaskedLM"), ("distilbert", "DistilBertForMaskedLM")])
def test_weights_with_another_head_are_refused_by_name(loader: str, name: str, tmp_path: Path) -> None:
    config = transformers.AutoConfig.for_model(loader, **CASES[loader][1])
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    message = rf"classifier.\w+ belongs to a model with another head; .* only the language-modelling head \({name}\)"
    with pytest.raises(CheckpointError, match=message):
        kf.load(tmp_path)


def test_another_activation_is_refused(tmp_path: Path) -> None:
    peer("bert").save_pretrained(tmp_path)
    changed(tmp_path, hidden_act="relu")
    with pytest.raises(CheckpointError, match="hidden_act='relu', expected 'gelu'"):
        kf.load(tmp_path)


def test_a_model_without_segment_types_is_a_distilbert() -> None:
    """A table of no types would be a BERT that transformers can build, but not read with."""
    model = kf.bert(d=8, depth=1, heads=2, length=16, kinds=0, vocab=11, mask=3)
    assert native(model)[0].model_type == "distilbert"


def test_a_model_without_its_head_is_written_without_one(tmp_path: Path) -> None:
    theirs = peer("bert").bert
    theirs.save_pretrained(tmp_path / "theirs")
    with pytest.warns(UserWarning, match="have no head"):
        kf.save(kf.load(tmp_path / "theirs"), tmp_path / "back", format="hf")
    back, info = transformers.AutoModel.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert type(back) is transformers.BertModel and not info["unexpected_keys"]
    tokens = torch.randint(2, VOCAB, (3, 17))
    agree(back.double()(tokens).last_hidden_state, theirs(tokens).last_hidden_state)
    with pytest.warns(UserWarning, match="have no head"):
        assert kf.load(tmp_path / "back").headless
