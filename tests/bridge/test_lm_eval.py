"""KinformerLM: a task of lm_eval on a local file, and the numbers behind it."""

import json
import math
from pathlib import Path

import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.tasks import TaskManager

import kinformer as kf
from kinformer.bridge.lm_eval import KinformerLM
from kinformer.checkpoint.tokenizer_choice import train_tokenizer
from tests.bridge.test_tokenizers import folder_with

QUESTIONS = [
    {"question": "the cat sat on the", "choices": ["mat", "dog", "a"], "answer": 0},
    {"question": "one two", "choices": ["three", "b"], "answer": 1},
    {"question": "x", "choices": ["y", "zz", "the"], "answer": 2},
]
TASK = """
task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""


@pytest.fixture
def model() -> kf.Model:
    torch.manual_seed(0)
    return kf.gpt(d=16, depth=2, heads=2, length=64).eval()


def likelihood(model: kf.Model, context: str, continuation: str) -> float:
    tokens = torch.tensor([list((context + continuation).encode())])
    values = model.logits(tokens).y.log_softmax(-1)[0, :-1].gather(-1, tokens[0, 1:, None])[:, 0]
    return values[len(context.encode()) - 1 :].sum().item()


def test_a_task_from_a_local_file(model: kf.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in QUESTIONS))
    (tmp_path / "local_choices.yaml").write_text(TASK.format(file=tmp_path / "data.jsonl"))
    kf.save(model, tmp_path / "run")
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = lm_eval.simple_evaluate(
        KinformerLM(tmp_path / "run"), tasks=["local_choices"], task_manager=manager, bootstrap_iters=0
    )
    right = 0
    for row in QUESTIONS:
        values = [likelihood(model, row["question"], f" {choice}") for choice in row["choices"]]
        right += max(range(len(values)), key=values.__getitem__) == row["answer"]
    assert results["results"]["local_choices"]["acc,none"] == pytest.approx(right / 3)


def requests(kind: str, *arguments: tuple[object, ...]) -> list[Instance]:
    return [Instance(kind, {}, each, n) for n, each in enumerate(arguments)]


def test_likelihoods_and_whole_texts(model: kf.Model) -> None:
    lm = KinformerLM(model)
    ((value, greedy), (empty, _)) = lm.loglikelihood(requests("loglikelihood", ("a cat ", " sat"), ("", "sat")))
    assert value == pytest.approx(likelihood(model, "a cat", "  sat"), abs=1e-4) and not greedy
    assert empty == pytest.approx(likelihood(model, "\n", "sat"), abs=1e-4)
    (rolling,) = lm.loglikelihood_rolling(requests("loglikelihood_rolling", ("a cat",)))
    assert rolling == pytest.approx(likelihood(model, "\n", "a cat"), abs=1e-4) and math.isfinite(rolling)
    text = bytes(kf.generate(model, list(b"ab"), 1, temperature=0)[0, 2:].tolist()).decode("latin1")
    assert text.isascii() and lm.loglikelihood(requests("loglikelihood", ("ab", text)))[0][1]


def test_answers_end_at_the_texts_of_the_task(model: kf.Model) -> None:
    lm = KinformerLM(model, batch_size=2)
    alone = []
    for context in ("a cat", "the", "x y"):
        row = kf.generate(model, list(context.encode()), 12, temperature=0)[0, len(context) :]
        alone.append(bytes(row.tolist()).decode(errors="replace"))
    stop = alone[0][4]
    options = {"until": [stop, "never"], "max_gen_toks": 12, "do_sample": False}
    answers = lm.generate_until(
        requests("generate_until", ("a cat", options), ("the", {"until": [], "max_gen_toks": 12}), ("x y", options))
    )
    assert answers == [alone[0].split(stop)[0], alone[1], alone[2].split(stop)[0]]
    model.foreign_ends = (ord(stop),)  # the token that ends a text is no part of it
    (ended,) = lm.generate_until(requests("generate_until", ("a cat", {"until": [], "max_gen_toks": 12})))
    assert ended == alone[0].split(stop)[0]
    usual = {"until": [], "temperature": 0.0, "top_p": 0.9, "do_sample": True, "max_tokens": 12, "num_beams": 1}
    assert lm.generate_until(requests("generate_until", ("a cat", usual))) == [ended]
    (unstopped,) = lm.generate_until(requests("generate_until", ("the", {"until": [""], "max_gen_toks": 12})))
    assert unstopped == alone[1]
    for wrong, message in (
        ({"batch_size": 0}, "wrong batch_size: got 0, expected a number above 0"),
        ({"batch_size": "auto"}, "wrong batch_size: got 'auto'"),
        ({"devcie": "cpu"}, "devcie"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            KinformerLM(model, **wrong)
    with pytest.raises(ValueError, match="a task gives num_beams=2, but answers are single rows"):
        lm.generate_until(requests("generate_until", ("a", {"num_beams": 2})))
    with pytest.raises(
        ValueError, match="lm_eval needs a model that predicts the next token of a text, but bert is a masked"
    ):
        KinformerLM(kf.bert(d=16, depth=1, heads=2))


def test_models_with_other_tokenizers_have_other_names(model: kf.Model) -> None:
    names = [KinformerLM(model).tokenizer_name]
    for text in ("the cat sat", "xyzzy ab ab"):
        model.tokenizer = train_tokenizer([text], 300)
        names.append(KinformerLM(model).tokenizer_name)
    assert names[0] == "bytes" and len(set(names)) == 3


def test_results_are_those_of_the_class_for_transformers(tmp_path: Path) -> None:
    """The tokenizer puts <s> before a text, and so do both."""
    folder = folder_with(tmp_path / "theirs")
    ours, theirs = KinformerLM(str(folder)), get_model("hf")(str(folder), device="cpu")
    pairs = requests("loglikelihood", ("the cat", " sat on"), ("", "the mat"), ("a ", "b"))
    for own, other in zip(ours.loglikelihood(pairs), theirs.loglikelihood(pairs), strict=True):
        assert own == (pytest.approx(other[0], abs=1e-4), other[1])
    whole = requests("loglikelihood_rolling", ("the cat sat",), ("x",))
    assert ours.loglikelihood_rolling(whole) == pytest.approx(theirs.loglikelihood_rolling(whole), abs=1e-4)
    options = {"until": ["q"], "max_gen_toks": 12, "do_sample": False}
    texts = requests("generate_until", ("the cat", options), ("mat", options))
    assert ours.generate_until(texts) == theirs.generate_until(texts)
