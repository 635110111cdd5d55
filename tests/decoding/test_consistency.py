"""What is lost by leaving early, text by text, and how many layers were taken."""

from inspect import unwrap
from itertools import combinations

import pytest
import torch

from kinformer.decoding.consistency import differing_places, losses, rouge_loss, use_rule, write_texts
from kinformer.decoding.generate import generate
from kinformer.decoding.layers_used import record_layers_used
from kinformer.decoding.prompts import Prompts
from kinformer.lab.data.text import read
from kinformer.members.calm import calm
from kinformer.members.gpt import gpt
from kinformer.nn.exits.never_exit import NeverExit

SIZES = {"d": 16, "depth": 3, "heads": 2, "length": 64, "vocab": 11}


def longest(first: str, other: str) -> int:
    """Of all subsequences of one the longest that is one of the other, by trying."""

    def within(letters: tuple[str, ...]) -> bool:
        rest = iter(other)
        return all(letter in rest for letter in letters)

    return max(n for n in range(len(first) + 1) if any(within(subsequence) for subsequence in combinations(first, n)))


def test_texts_are_apart_by_their_longest_common_subsequence() -> None:
    for first, other in (
        ("abcde", "axcye"),
        ("abc", "abc"),
        ("abc", "xyz"),
        ("", "ab"),
        ("aabba", "bab"),
        ("a", "a" * 9),
    ):
        expected = 1 - 2 * longest(first, other) / (len(first) + len(other))
        assert rouge_loss(first.encode(), other.encode()) == pytest.approx(expected)
        assert rouge_loss(other.encode(), first.encode()) == pytest.approx(expected)
    assert rouge_loss([], []) == differing_places([], []) == 0
    assert differing_places(b"abcd", b"abxd") == 0.25 and differing_places(b"ab", b"abcd") == 0.5


def test_losses_are_beside_the_full_model_s_text_or_beside_its_risk() -> None:
    prompts = Prompts([b""] * 3, [b"aaaa"] * 3, 4, by_place=True)
    early, full = [b"aabb", b"bbbb", b"aaaa"], [b"aaaa", b"bbbb", b"aabb"]
    assert losses("textual", prompts, early, full) == [0.5, 0.0, 0.5]
    assert losses("risk", prompts, early, full) == [0.5, 0.0, 0.0], "a text that is nearer loses nothing"
    assert losses("textual", prompts._replace(by_place=False), early, full) == [0.5, 0.0, 0.5]
    with pytest.raises(ValueError, match="consistency='exact'"):
        unwrap(losses)("exact", prompts, early, full)  # without the check of annotations


def test_layers_are_those_that_each_new_token_was_read_with() -> None:
    torch.manual_seed(0)
    model = calm(threshold=0.04, temperature=None, **SIZES).eval()
    prompts = [[1, 2, 3], [4], [5, 6]]
    requests = Prompts(prompts, prompts, 6)
    lengths: list[int] = []
    result = write_texts(model, requests, lengths.append)
    assert lengths == [3]
    layers = []
    for prompt, text in zip(prompts, result.texts, strict=True):
        row = generate(model, torch.tensor([prompt]), 6, temperature=0)
        assert row[0, len(prompt) :].tolist() == text
        layers += model.logits(row[:, :-1]).aux["exit"][0, len(prompt) - 1 :].tolist()
    assert result.layers == pytest.approx(sum(layers) / len(layers)) and len(set(layers)) > 1
    with record_layers_used(gpt(**SIZES)) as layers:
        assert layers == []


def test_nobody_leaves_and_the_rule_comes_back() -> None:
    model = calm(threshold=0.0, temperature=None, **SIZES).eval()
    own, row = model.exits.rule, torch.tensor([[1, 2, 3]])
    with use_rule(model.exits, NeverExit()):
        full = model.logits(row)
        assert (full.aux["exit"] == 3).all()
    assert model.exits.rule is own and (model.logits(row).aux["exit"] == 1).all()
    same = calm(threshold=1.0, temperature=None, strict=True, **SIZES).eval()
    same.load_state_dict(model.state_dict())
    assert torch.equal(full.y, same.logits(row).y)


def test_windows_of_a_text_lie_in_one_document(tmp_path) -> None:
    (tmp_path / "text").write_text("".join(f"{n:03d}-abcdefgh\n" for n in range(400)))
    model = calm(**{**SIZES, "vocab": 256})
    whole = read(str(tmp_path / "text"))
    requests = whole.prompts(model, "train", 5, 6, 3)
    text = bytes(whole.train.tolist())
    for prompt, next_ in zip(requests.prompts, requests.references, strict=True):
        assert len(prompt) == 6 and len(next_) == 3 and bytes([*prompt, *next_]) in text
    documents = read(str(tmp_path / "text"), documents="lines")
    requests = documents.prompts(model, "train", 7, 6, 3)
    for prompt, next_ in zip(requests.prompts, requests.references, strict=True):
        assert any(bytes([*prompt, *next_]) in line for line in (tmp_path / "text").read_bytes().splitlines(True))
    with pytest.raises(
        ValueError, match="9,999 windows of 9 bytes of test, side by side, were requested, but there are"
    ):
        whole.prompts(model, "test", 9999, 6, 3)
