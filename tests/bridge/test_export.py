"""Models for transformers, the Hub and torch.export: equal logits, texts and ids there, and what is refused."""

import io
import json
import os
import sys
from inspect import unwrap
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import kinformer as kf
from kinformer.attend import EXECUTORS
from kinformer.bridge.exported_graph import CHECKED, export_program, program_bytes
from kinformer.bridge.hf_export import hf_folder, without_folders
from kinformer.bridge.hf_tokenizer import byte_tokenizer
from kinformer.bridge.hub_model import HubModel
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from kinformer.core.discover import find_member
from tests.parity.peers import agree, shaken
from tests.unhooked import process

SMALL = {"d": 16, "depth": 1, "heads": 2}
LETTERS = st.text(st.characters(exclude_categories=["Cs"]))  # no lone surrogates, which UTF-8 cannot hold
BYTES = transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizers.Tokenizer.from_str(byte_tokenizer()), clean_up_tokenization_spaces=False
)


@pytest.fixture(autouse=True)
def modules_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers copies the code of folders into a folder of the test."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])


def make(name: str, **keywords: Any) -> Any:
    torch.manual_seed(0)
    model: Any = find_member(name)(**{**SMALL, **keywords})
    for weight in model.parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.4)
    return shaken(model).eval()


def load_there(folder: Path, loader: str) -> tuple[Any, Any]:
    """The model and the tokenizer that transformers loads."""
    model = getattr(transformers, loader).from_pretrained(folder, trust_remote_code=True)
    return model, transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)


@given(LETTERS)
def test_the_tokenizer_of_bytes_gives_the_bytes_of_any_text(text: str) -> None:
    ids = BYTES(text)["input_ids"]
    assert ids == list(text.encode()) and BYTES.decode(ids) == text


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_a_class_of_transformers_computes_the_model(name: str, tmp_path: Path) -> None:
    model = make(name)
    model.trained_length = 50
    kf.save(model, tmp_path, format="hf")
    theirs, tokenizer = load_there(tmp_path, "AutoModelForCausalLM")
    assert type(theirs).__module__.startswith("transformers.models.")
    tokens = tokenizer("\x00 café 😀  <s>", return_tensors="pt")["input_ids"]
    assert tokens[0].tolist() == list("\x00 café 😀  <s>".encode())
    agree(theirs(tokens).logits, model.logits(tokens).y)
    text = theirs.generate(tokens, max_new_tokens=9, do_sample=False)
    assert torch.equal(text, kf.generate(model, tokens, 9, temperature=0))
    again = kf.load(tmp_path)
    assert torch.equal(again.logits(tokens).y, model.logits(tokens).y) and again.tokenizer is None


WRAPPED = {
    "gpt": ("AutoModelForCausalLM", {"position": "rotary"}),
    "linear_transformer": ("AutoModelForCausalLM", {"length": 40}),
    "bert": ("AutoModelForMaskedLM", {"length": 40}),
    "bert_classifier": ("AutoModelForSequenceClassification", {"length": 40}),
    "transformer": ("AutoModelForSeq2SeqLM", {}),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_other_models_are_wrapped(name: str, tmp_path: Path) -> None:
    loader, keywords = WRAPPED[name]
    model = make(name, **keywords)
    model.tokenizer = train_tokenizer(["the cat sat on the mat. "], 256) if name == "gpt" else None
    written = hf_folder(model)
    assert written.reason is not None and written.loader == loader
    kf.save(model, tmp_path / "one", format="hf")
    assert "trust_remote_code=True" in (tmp_path / "one" / "README.md").read_text()
    theirs, tokenizer = load_there(tmp_path / "one", loader)
    tokens = tokenizer("the cat sat", return_tensors="pt")["input_ids"]
    start = torch.tensor([[getattr(model, "begin", 0), 5]])
    arguments = {"decoder_input_ids": start} if model.reads == "pairs" else {}
    want = (
        model.logits(start, source=tokens).y
        if arguments
        else model.scores(tokens)
        if model.reads == "labelled"
        else model.logits(tokens).y
    )
    assert torch.equal(theirs(input_ids=tokens, **arguments).logits, want)
    assert isinstance(theirs, transformers.PreTrainedModel) and not theirs.training
    if model.reads == "masked":
        assert tokenizer.mask_token_id == model.mask and tokenizer.decode([model.mask]) == "<mask>"
    theirs.save_pretrained(tmp_path / "two")  # as a Trainer does
    tokenizer.save_pretrained(tmp_path / "two")
    assert load_there(tmp_path / "two", loader)[0].state_dict().keys() == theirs.state_dict().keys()
    for folder in (tmp_path / "one", tmp_path / "two"):
        again = kf.load(folder)
        assert again.member.name == name and again.state_dict().keys() == model.state_dict().keys()
        for weight, other in zip(again.state_dict().values(), model.state_dict().values(), strict=True):
            assert torch.equal(weight, other)


def test_a_model_of_other_data_is_written_if_a_class_computes_it(tmp_path: Path) -> None:
    keys = {"state_dim": 5, "act_dim": 2, "hidden_size": 24, "max_ep_len": 12, "n_layer": 1, "n_head": 3}
    theirs = transformers.DecisionTransformerModel(transformers.DecisionTransformerConfig(**keys))
    theirs.save_pretrained(tmp_path / "one")
    kf.load(tmp_path / "one").save_pretrained(tmp_path / "two")
    again = transformers.AutoModel.from_pretrained(tmp_path / "two")
    assert type(again) is type(theirs) and "AutoTokenizer" not in (tmp_path / "two" / "README.md").read_text()
    rows = torch.randn(1, 3, 5), torch.randn(1, 3, 2), torch.randn(1, 3, 1), torch.randn(1, 3, 1), torch.arange(3)[None]
    names = ("states", "actions", "rewards", "returns_to_go", "timesteps")
    given = dict(zip(names, rows, strict=True))
    with torch.no_grad():
        assert torch.equal(again.eval()(**given).action_preds, theirs.eval()(**given).action_preds)


def test_generation_there_reads_rows_beyond_the_learned_positions(tmp_path: Path) -> None:
    model = make("gpt", length=12, pattern="Causal() & Band(5)")
    kf.save(model, tmp_path, format="hf")
    theirs, tokenizer = load_there(tmp_path, "AutoModelForCausalLM")
    tokens = tokenizer(["the cat"], return_tensors="pt")["input_ids"]
    with pytest.warns(UserWarning, match="are more than the 12 positions"):
        want = kf.generate(model, tokens, 15, temperature=0)
    assert torch.equal(theirs.generate(tokens, max_new_tokens=15, do_sample=False), want)


def test_the_dtype_and_what_a_training_changes_stay(tmp_path: Path) -> None:
    model = make("adaptive_span").to(torch.bfloat16)
    kf.save(model, tmp_path / "one", format="hf")
    theirs, _ = load_there(tmp_path / "one", "AutoModelForCausalLM")
    assert {weight.dtype for weight in theirs.parameters()} == {torch.bfloat16}
    out = theirs(input_ids=torch.tensor([[1, 2, 3, 4]]), labels=torch.tensor([[1, 2, 3, 4]]))
    out.loss.backward()
    assert all(weight.grad is not None for weight in theirs.model.body.parameters())


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    picture = make("image_transformer", shape=(1, 4, 4), block=4, memory=4)
    with pytest.raises(ValueError, match="image_transformer for transformers: transformers has no class for image_"):
        kf.save(picture, tmp_path, format="hf")
    with pytest.raises(ValueError, match="cannot export a graph: got image_transformer, expected a language model"):
        export_program(picture)
    with pytest.raises(ValueError, match="format='gguf' is not known; choose 'kinformer' or 'hf'"):
        unwrap(kf.save)(make("gpt"), tmp_path, format="gguf")
    with pytest.raises(ValueError, match="step=3 has no effect with format='hf'"):
        kf.save(make("gpt"), tmp_path, step=3, format="hf")
    with pytest.raises(ValueError, match="its tokenizer has 268 tokens, expected at most vocab=20"):
        kf.save(with_tokenizer(make("gpt", vocab=20)), tmp_path, format="hf")
    with pytest.raises(ValueError, match="DecisionTransformerModel cannot compute discrete=True. kf.save"):
        kf.save(make("decision_transformer", discrete=True), tmp_path, format="hf")
    assert not list(tmp_path.iterdir())


def with_tokenizer(model: Any) -> Any:
    model.tokenizer = train_tokenizer(["the cat sat on the mat. "], 268)
    assert model.tokenizer.size == 268
    return model


def test_a_refused_model_leaves_its_own_folder_whole(tmp_path: Path) -> None:
    picture = make("image_transformer", shape=(1, 4, 4), block=4, memory=4)
    kf.save(picture, tmp_path)
    with pytest.raises(ValueError, match="cannot write image_transformer"):
        kf.load(tmp_path).save_pretrained(tmp_path)
    assert kf.load(tmp_path).member.name == "image_transformer"


def test_a_kill_between_config_and_weights_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kf.save(make("gpt", heads=2), tmp_path, format="hf")
    config, replace = tmp_path / "config.json", os.replace

    def stop_at_weights(source: Path, target: Path) -> None:
        if target.name == "model.safetensors":
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("kinformer.checkpoint.atomic_files.os.replace", stop_at_weights)
        kf.save(make("gpt", heads=4), tmp_path, format="hf")
    with pytest.raises(ValueError, match="belong to different models: got n_head=4, expected n_head=2"):
        kf.load(tmp_path)
    entries = {**json.loads(config.read_text()), "n_head": 2, "eos_token_id": 7, "summary_type": "mean"}
    config.write_text(json.dumps(entries))  # keys that change no result may be edited
    assert kf.load(tmp_path).member.keywords["heads"] == 2


def test_the_folders_of_the_machine_are_not_published(tmp_path: Path) -> None:
    model = make("gpt", position="rotary")
    model.trained_on = "text=/home/alice/books/emma.txt,tokenizer=~/tokens/bpe.json"
    model.save_pretrained(tmp_path)
    texts = [(tmp_path / name).read_text() for name in ("config.json", "README.md")]
    assert not any("alice" in text or "tokens/" in text for text in texts)
    assert all("text=emma.txt,tokenizer=bpe.json" in text for text in texts)
    names = {"/home/alice/store": "store", "~alice/store": "store", "data/store": "data/store", "~Band(5)": "~Band(5)"}
    assert {path: without_folders(path) for path in names} == names  # keywords, which the card shows


# The Hub --------------------------------------------------------------------------------------------------------------


def test_push_to_hub_uploads_what_from_pretrained_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, uploaded = make("gpt"), {}

    def create(api: Any, repo_id: str, **options: Any) -> Any:
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload(api: Any, *, repo_id: str, folder_path: Path, **options: Any) -> str:
        uploaded[repo_id] = {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
        return "address"

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload)
    assert model.push_to_hub("someone/small-gpt") == "address"
    (files,) = uploaded.values()
    card = huggingface_hub.ModelCard(files["README.md"].decode())
    assert card.data.library_name == "transformers" and card.data.tags == ["kinformer", "gpt"]
    assert card.text.strip().startswith("# small-gpt")
    model.save_pretrained(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == files.keys()
    again = HubModel.from_pretrained(tmp_path / "saved")
    tokens = torch.arange(9)[None]
    assert torch.equal(again.logits(tokens).y, model.logits(tokens).y)


def test_without_a_connection_push_to_hub_says_what_to_do_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(api: Any, *arguments: Any, **options: Any) -> Any:
        raise OfflineError("[Errno -2] Name or service\nnot known")

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", fail)
    with pytest.raises(OSError, match="cannot upload someone/gpt .*OfflineError: .* `hf auth login`") as caught:
        make("gpt").push_to_hub("someone/gpt")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="cannot write image_transformer"):
        make("image_transformer", shape=(1, 4, 4), block=4, memory=4).push_to_hub("someone/pictures")


class OfflineError(Exception):
    """Stands for the error of the HTTP client, which is no OSError."""


# Graphs ---------------------------------------------------------------------------------------------------------------

GRAPHS = ("gpt", "llama", "bert", "longformer", "bigbird", "linear_transformer")


def graph(name: str) -> list[str]:
    """Loads the graph of a member from its bytes, compares it with the model, and returns its operators."""
    model: Any = find_member(name)(**SMALL, vocab=11).eval()
    program = torch.export.load(io.BytesIO(program_bytes(export_program(model))))
    call = program.module()
    for rows, length in (*CHECKED, (1, 3), (2, 130)):
        tokens = model.sample(rows, length, 5)
        tokens[-1, length // 2 + 1 :] = -1
        want = model.logits(tokens).y.detach()[tokens >= 0]
        assert (call(tokens)[tokens >= 0] - want).abs().max() < 1e-4 * want.abs().max()
    return sorted({str(node.target) for node in program.graph.nodes if node.op == "call_function"})


@pytest.mark.prove
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_serves_all_lengths_and_needs_no_operator_of_ours(name: str) -> None:
    operators = process().call("tests.bridge.test_export:graph", name)
    assert operators and not any("kinformer" in operator for operator in operators)


@pytest.mark.parametrize("name", ["llama", "bigbird", "linear_transformer"])
def test_what_a_graph_computes_is_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls as the tracer makes them: without a plan, an estimate of time, or a number of pieces."""
    model = make(name)
    tokens = model.sample(2, 150, 0)
    want = model.logits(tokens).y
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)
    for executor in ("pieces", "flex", "masked"):
        monkeypatch.setattr(EXECUTORS[executor], "cost", lambda request: pytest.fail("an estimate"))
    agree(model.logits(tokens).y, want, 1e-4)
