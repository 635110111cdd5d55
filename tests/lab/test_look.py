"""Attention maps: equal to a naive loop, causal, whole, and only of layers whose output they reproduce."""

import json
import math
import warnings
from inspect import unwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import kinformer as kf
from kinformer.cli.__main__ import run
from kinformer.core.discover import modules
from kinformer.core.example import Example
from kinformer.lab.look import look

TEXT = bytes(3 * n * n % 11 for n in range(30))  # bytes that the small examples have in their vocabulary
# layers that read single tokens by weights, and are called once for each row
SEEN = (
    *("adaptive_span", "bert", "bigbird", "bloom", "calm", "gpt", "gtrxl", "lazyformer", "llama", "longformer"),
    *("longformer_lm", "multi_query", "reformer", "routing_transformer", "sparse_transformer", "synthesizer"),
    "transformer_xl",
)
MIXED = "the queries or keys of {} are not single tokens of the text"
UNSEEN = {
    "bp_transformer": MIXED.format("TreeSoftmax"),
    "compressive_transformer": MIXED.format("Softmax"),
    "linear_transformer": "LinearAttention computes its weights itself, so they cannot be computed again",
    "linformer": MIXED.format("Shortened"),
    "nystromformer": MIXED.format("Nystrom"),
    "sinkhorn_transformer": MIXED.format("Sinkhorn"),
    "memorizing_transformer": "Retrieval changes the output after attention, so the weights do not explain it",
    "universal_transformer": "the layer is called several times",
}


def example(name: str) -> Any:
    torch.manual_seed(0)
    return Example.from_entry(modules("members")[name].EXAMPLES[0]).make()


def test_the_maps_of_gpt_are_those_of_a_naive_loop() -> None:
    model = example("gpt").double()
    inputs: dict[str, torch.Tensor] = {}
    layers = {name: part for name, part in model.named_modules() if isinstance(part, kf.Attention)}
    for name, part in layers.items():
        part.register_forward_pre_hook(lambda _, given, name=name: inputs.update({name: given[0][0]}))
    seen = look(model, TEXT)
    assert list(seen.maps) == list(layers) and len(layers) == 2 and not seen.unseen
    for name, part in layers.items():
        matrix = part.projection.qkv
        with torch.no_grad():
            q, k = (inputs[name] @ matrix.weight.T + matrix.bias).unflatten(1, (3, 2, 8)).unbind(1)[:2]
        for h in range(2):
            for i in range(len(TEXT)):
                scores = [math.exp(float(q[i, h] @ k[j, h]) / math.sqrt(8)) for j in range(i + 1)]
                expected = [score / sum(scores) for score in scores] + [0.0] * (len(TEXT) - i - 1)
                torch.testing.assert_close(seen.maps[name][h, i], torch.tensor(expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", SEEN)
def test_every_row_of_a_map_sums_to_one_and_a_decoder_reads_nothing_ahead(name: str) -> None:
    model = example(name)
    seen = look(model, TEXT)
    assert seen.maps and not seen.unseen
    for attention in seen.maps.values():
        sums = attention.sum(-1)
        assert torch.minimum((sums - 1).abs(), sums.abs()).max() < 1e-5 and sums.max() > 0.5
        if model.predicts_next:
            assert not attention.triu(1).any()


@pytest.mark.parametrize("name", UNSEEN)
def test_a_layer_whose_output_no_map_reproduces_says_why(name: str) -> None:
    seen = look(example(name), TEXT)
    assert seen.unseen and set(seen.unseen.values()) == {UNSEEN[name]}
    assert not set(seen.maps) & set(seen.unseen)


def test_bits_are_the_loss_of_each_token_and_a_masked_model_has_none() -> None:
    model = example("gpt").eval()
    seen = look(model, TEXT)
    with torch.no_grad():
        nll = -model.logits(torch.tensor([list(TEXT)])).y.log_softmax(-1)[0] / math.log(2)
    assert seen.bits is not None and math.isnan(seen.bits[0])
    assert [float(bits) for bits in seen.bits[1:]] == pytest.approx([float(nll[i, t]) for i, t in enumerate(TEXT[1:])])
    assert seen.tokens == [bytes([byte]) for byte in TEXT]
    assert look(example("bert"), TEXT).bits is None


def test_a_look_leaves_the_model_as_it_was() -> None:
    model = example("gpt").train()
    hooks = [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]
    frozen = next(part for part in model.modules() if isinstance(part, nn.Linear)).eval()
    look(model, TEXT)
    assert model.training and not frozen.training
    assert hooks == [len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules()]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("transformer", TEXT, "reads pairs, expected a model that reads one text"),
        ("gpt", b"\x01", "got a text of 1 token, expected 2 to 16,384"),
        ("lstm", bytes(16385), "got a text of 16,385 tokens, expected 2 to 16,384"),
        ("gpt", bytes(65), "this model reads at most 64 tokens; got 65. Give a shorter text"),
    ],
)
def test_a_text_that_cannot_be_looked_at_is_refused(name: str, text: bytes, words: str) -> None:
    with pytest.raises((ValueError, IndexError), match=words):
        look(example(name), text)


def test_a_model_without_attention_has_no_maps() -> None:
    seen = look(example("lstm"), TEXT)
    assert not seen.maps and not seen.unseen and seen.bits is not None
    assert not any(isinstance(part, kf.Attention) for part in nn.ModuleList([example("lstm")]).modules())


def test_a_classifier_and_wrong_arguments() -> None:
    model = kf.bert_classifier(d=16, depth=1, heads=2, length=32)
    seen = look(model, b"abcd")
    (attention,) = seen.maps.values()
    assert seen.tokens == [b"a", b"b", b"c", b"d"] and attention.shape == (2, 4, 4) and seen.bits is None
    torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4))
    marked = look(kf.bert_classifier(d=16, depth=1, heads=2, length=32, pool="first"), b"abcd")
    assert len(marked.tokens) == 5 and len(marked.maps) == 1 and not marked.unseen  # with a class token
    gpt: Any = example("gpt")
    for message, arguments in {
        "look reads one text: got a list of 2 texts": (gpt, ["a b", "c d"]),
        r"wrong model for look: got 'runs/x', .* with Attention layers. Give kf.load\(FOLDER\)": ("runs/x", "a b"),
    }.items():
        with pytest.raises(TypeError, match=message):
            unwrap(look)(*arguments)
    with pytest.raises(ValueError, match="one row of token ids without padding: got 2 rows"):
        look(gpt, torch.tensor([[1, 2], [3, 4]]))
    with pytest.raises(ValueError, match="one row of token ids without padding: got padding"):
        look(gpt, {"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 0]]})


@pytest.mark.parametrize("name", ["gpt", "llama", "longformer_lm", "transformer_xl"])
def test_a_model_in_bfloat16_has_the_maps_of_its_float32_weights(name: str) -> None:
    model = example(name)
    low = look(model.bfloat16(), TEXT)
    high = look(model.float(), TEXT)
    assert list(low.maps) == list(high.maps) and not low.unseen
    for layer, attention in high.maps.items():
        torch.testing.assert_close(low.maps[layer], attention, atol=0.02, rtol=0)


def test_a_layer_with_damaged_weights_has_no_map() -> None:
    model = example("gpt")
    with torch.no_grad():
        model.embedding.weight.fill_(math.nan)
    assert set(look(model, TEXT).unseen.values()) == {"its output is not finite"}


SMALL = {"vocab_size": 60, "bos_token_id": 1, "eos_token_id": 2}
FOREIGN = {
    "GPT2LMHeadModel": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, **SMALL},
    "LlamaForCausalLM": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"intermediate_size": 24, **SMALL},
    },
    "BertForMaskedLM": {
        **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24},
        **{"max_position_embeddings": 32, "vocab_size": 60},
    },
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_model_of_transformers_has_the_weights_that_it_returns_itself(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    config = cls.config_class(**FOREIGN[name])
    config._attn_implementation = "eager"
    model = cls(config).eval()
    ids = torch.tensor([[5, 9, 33, 5, 9, 41, 7]])
    with torch.no_grad():
        out = model(ids, output_attentions=True)
    seen = look(model, ids)
    assert len(seen.maps) == 2 and not seen.unseen
    for attention, expected in zip(seen.maps.values(), out.attentions, strict=True):
        torch.testing.assert_close(attention, expected[0], atol=1e-5, rtol=0)
    if name == "BertForMaskedLM":
        assert seen.bits is None
        return
    nll = -out.logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0] / math.log(2)
    assert seen.bits is not None
    torch.testing.assert_close(seen.bits[1:], nll, atol=1e-4, rtol=0)


def bert_folder(folder: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    torch.manual_seed(0)
    config = transformers.BertConfig(**FOREIGN["BertForMaskedLM"])
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    return folder


def test_bert_reads_the_special_tokens_of_its_tokenizer_by_both_ways(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "The cats sat"
    folder = bert_folder(tmp_path)
    theirs = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(folder)
    expected = theirs(text)["input_ids"]
    assert expected == [2, 5, 6, 7, 8, 3]
    model = kf.load(folder)
    seen = look(model, text)
    (first, *_), given = seen.maps.values(), look(model, theirs(text))
    assert [part.strip() for part in seen.tokens] == [b"[CLS]", b"the", b"cat", b"s", b"sat", b"[SEP]"]
    torch.testing.assert_close(first, next(iter(given.maps.values())))
    assert look(model, f"[CLS] {text} [SEP]").tokens == seen.tokens  # given tokens are not repeated
    assert run(["look", str(folder), "--text", text, "--out", str(tmp_path / "page.html"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [part.strip() for part in printed["tokens"]] == ["[CLS]", "the", "cat", "s", "sat", "[SEP]"]
    trained = kf.load(folder)
    trained.trained_on = "text=own"  # rows of a training here have no special tokens
    assert len(look(trained, text).tokens) == 4


def test_bert_fills_gaps_between_its_special_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = bert_folder(tmp_path)
    model = kf.load(folder)
    with torch.no_grad():
        best = model.logits(torch.tensor([[2, 5, 4, 8, 3]])).y[0, 2].softmax(-1)
    assert run(["fill", str(folder), "--text", "the _ sat", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["blanks"][0][0]["token"] == int(best.argmax())
    assert record["blanks"][0][0]["probability"] == pytest.approx(float(best.max()), rel=1e-4)
    assert "[CLS]" not in record["filled"] and "[SEP]" not in record["filled"]


def test_a_text_beyond_the_rows_of_the_training_is_warned_of() -> None:
    model = kf.llama(d=16, depth=1, heads=2)
    model.trained_length = 8
    with pytest.warns(UserWarning, match="got 9 tokens, but the model was trained on rows of 8"):
        look(model, bytes(9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        look(model, bytes(8))
    positioned = kf.gpt(d=16, depth=1, heads=2, length=16)
    positioned.trained_length = 8
    with pytest.warns(UserWarning, match="got 9 tokens, but the model was trained on rows of 8"):
        look(positioned, bytes(9))


def test_attention_of_another_library_is_listed_with_a_reason() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = kf.Attention(kf.QKV(16, 2), kf.Softmax(kf.Full()))
            self.theirs = nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.own(x).y
            return self.theirs(y, y, y)[0]

    seen = look(Mixed(), torch.randn(1, 5, 16))
    assert list(seen.maps) == ["own"] and list(seen.unseen) == ["theirs"]
    assert seen.unseen["theirs"] == (
        "it is a torch.nn.MultiheadAttention, and look records only kf.Attention. Use kf.Attention in its place, or "
        "call the layer with need_weights=True"
    )
    mixed = Mixed()
    mixed.theirs = kf.MultiheadAttention(16, 2, batch_first=True)
    assert "it is a MultiheadAttention, and look records only" in look(mixed, torch.randn(1, 5, 16)).unseen["theirs"]


def test_a_model_of_transformers_needs_its_token_ids(capfd: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**FOREIGN["GPT2LMHeadModel"]))
    with pytest.raises(TypeError, match=r"has no tokenizer. Call kf.look\(model, tokenizer\(text\)\)"):
        look(model, TEXT)
    capfd.readouterr()
    assert look(model, {"input_ids": [5, 9, 7], "attention_mask": [1, 1, 1]}).maps
    assert "model shards" not in capfd.readouterr().err
    assert transformers.utils.logging.is_progress_bar_enabled()


def test_the_progress_counts_the_layers() -> None:
    reports: list[int] = []
    look(example("gpt"), TEXT, on_progress=reports.append)
    assert reports == [1, 2]
