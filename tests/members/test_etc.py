"""ETC: what its keywords change, and that sentences or lines of a text are its segments."""

from pathlib import Path

import pytest
import torch

from kinformer.checkpoint.checkpoint import load, save
from kinformer.core.batch import TokenBatch
from kinformer.lab.data.text import read
from kinformer.lab.train.fit import fit
from kinformer.laws import any_length, padding
from kinformer.laws.support.verdicts import JudgedPart, verdict
from kinformer.members.etc import etc
from kinformer.models.mlm import MLM
from kinformer.models.segments import segments
from kinformer.nn.depth.global_tokens import GlobalTokens
from kinformer.nn.patterns.band import Band

SMALL = {"d": 16, "depth": 1, "heads": 2, "radius": 2, "tokens": 3, "clip": 2}


def size(**keywords: object) -> int:
    return sum(weight.numel() for weight in etc(**{**SMALL, **keywords}).parameters())


def test_projections_outputs_and_order_are_what_they_add() -> None:
    plain, matrix = size(projections="shared", outputs="shared"), 16 * 16 + 16
    for projections, extra_matrices in (("reader", 3), ("four", 7), ("own", 3)):
        assert size(projections=projections, outputs="shared") - plain == extra_matrices * matrix
    assert size(projections="shared", outputs="separate") - plain == matrix
    # one more label each way, two heads of width 8
    assert size(projections="shared", outputs="shared", order=True) - plain == 2 * 2 * 8
    assert size(projections="shared", outputs="shared", hard=("g2l", "l2g")) == plain


def test_it_is_as_large_as_other_members() -> None:
    with torch.device("meta"):
        assert 1.0e6 < sum(weight.numel() for weight in etc().parameters()) < 1.3e6


def labels_in(model: MLM) -> list[torch.Tensor]:
    """The segments of global tokens and text, which come to it as the body reads."""
    labels: list[torch.Tensor] = []
    body = model.body
    assert isinstance(body, GlobalTokens)
    body.layer.register_forward_hook(lambda part, inputs, out: labels.append(inputs[2].labels["segment"]))
    return labels


def segments_seen(model: MLM, tokens: torch.Tensor) -> list[int]:
    labels = labels_in(model)
    model.logits(tokens)
    return labels[0][0].tolist()


@pytest.mark.parametrize("contrast", [0.0, 0.5])
def test_parts_are_those_of_the_text_whatever_is_hidden(contrast: float) -> None:
    text = torch.tensor([list(b"No. Ah! So? Or. It. ") * 4, list(b"a b. Yes. Who is it ") * 4])
    model = etc(**{**SMALL, "tokens": 40}, contrast=contrast).train()
    labels, want = labels_in(model), segments(text)
    scored = TokenBatch(text, (text == 46) | (text == 32))  # all that ends a sentence is hidden
    model(text, progress=0.3), model(scored), model.judge(text), model.judge(scored)
    assert [label.shape for label in labels] == [(2, 40 + 80)] * (4 + bool(contrast))
    for label in labels:
        assert torch.equal(label[:, 40:], want)


def test_parts_of_a_tokenizer_are_found_by_what_its_tokens_spell(tmp_path: Path) -> None:
    """Its tokens are neither bytes nor letters; a run holds the tokenizer, and its model finds the parts again."""
    sentence = "The cat sat on the mat. A dog lay there!\n"
    (tmp_path / "text").write_text(sentence * 60)
    data = read(f"{tmp_path}/text", tokenizer="bpe:300")
    assert data.tokenizer is not None
    model = etc(**SMALL, vocab=300)
    fit(model, data, steps=1, batch=2, length=32)
    save(model, tmp_path / "run")
    tokens = torch.tensor([data.tokenizer.encode(sentence.encode())])
    segment_ids = segments_seen(load(tmp_path / "run"), tokens)[3:]
    assert segment_ids == segments(tokens, data.tokenizer)[0].tolist()
    half = data.tokenizer.decode([token for token, n in zip(tokens[0].tolist(), segment_ids, strict=True) if n == 0])
    assert half.strip() == b"The cat sat on the mat."


def test_each_sentence_has_a_global_token_unless_another_unit_is_named() -> None:
    assert segments_seen(etc(**SMALL), torch.tensor([list(b"A\n. B")])) == [0, 1, -1] + [0] * 4 + [1]


def test_each_line_has_a_global_token_and_the_last_has_the_rest() -> None:
    text = torch.tensor([list(b"ab\nc\n")])
    assert segments_seen(etc(**SMALL, unit="line"), text) == [0, 1, -1, 0, 0, 0, 1, 1]
    text = torch.tensor([list(b"a\nb\nc\nd")])
    assert segments_seen(etc(**SMALL, unit="line"), text) == [0, 1, 2, 0, 0, 1, 1, 2, 2, 2]
    hidden = text.masked_fill(text == 10, 256)  # a hidden newline says nothing of where a line ends
    assert segments_seen(etc(**SMALL, unit="line"), hidden) == [0, -1, -1] + [0] * 7


def test_binary_matrices_say_who_reads_whom_in_each_direction() -> None:
    """Without l2g a token knows its windows alone; with g2l and l2g of a few, also what passes through them."""
    text = torch.randint(0, 11, (1, 24)).repeat(25, 1)
    text[1:].diagonal().add_(1).remainder_(11)

    def reads(**keywords: str) -> torch.Tensor:
        model = etc(**{**SMALL, "depth": 2}, vocab=11, **keywords).eval()
        y = model.logits(text).y
        return ((y[1:] - y[:1]).abs().amax(-1) > 1e-7).T

    near = Band(4).matrix(24)
    assert reads().all()
    assert torch.equal(reads(l2g="~Full()"), near)
    at = torch.arange(24)
    # the first global token reads the first four tokens, and tokens from 20 on read it alone
    through = (at[:, None] >= 20) & (at < 4)
    wide = reads(g2l="Heads(Tokens(4) & Rows(1))", l2g="~Rows(20) & Tokens(1)", g2g="Band(0)")
    far = (at[:, None] >= 18) & (at < 6)  # and within a window of both
    assert bool((wide >= (near | through)).all()) and bool((wide <= (near | far)).all())


@pytest.mark.parametrize("law", [any_length, padding])
@pytest.mark.parametrize("projections", ["four", "shared"])
def test_laws_with_hard_masks(law, projections) -> None:
    keywords = {**SMALL, "projections": projections, "hard": ("g2l", "l2g"), "order": True, "vocab": 11}
    verdict_of = verdict("law", law, JudgedPart("etc", lambda: etc(**keywords)))
    assert verdict_of is not None and verdict_of.end == "holds", verdict_of
