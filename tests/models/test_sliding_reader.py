"""Beyond learned positions: a full table reads its last half again from position 0, for each row by its own tokens."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.core.state import select
from kinformer.decoding.generate import generate
from kinformer.lab.train.evaluate import evaluate
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.transformer import transformer
from kinformer.models.support.sliding_reader import SlidingReader

SIZES: dict[str, Any] = {"d": 16, "depth": 1, "heads": 2, "vocab": 11, "dropout": 0.0}
SAYS = "more than the {} positions that this model has learned"


def last(model: Any, row: list[int], most: int, **options: Any) -> Tensor:
    """The logits after a row's last token, by the rule: read one by one; when full, keep the last half."""
    kept_tokens: list[int] = []
    for token in row:
        kept_tokens = [*(kept_tokens if len(kept_tokens) < most else kept_tokens[most - most // 2 :]), token]
    return model.logits(torch.tensor([kept_tokens]), **options).y[0, -1]


def writer(length: int = 64, **keywords: Any) -> Any:
    torch.manual_seed(0)
    return gpt(**SIZES, length=length, **keywords).double().eval()


@pytest.mark.parametrize("most", [1, 2, 5, 6])
def test_each_token_is_read_by_the_rule_however_the_row_is_cut(most: int) -> None:
    model = writer()
    rows = torch.randint(0, 11, (3, 17))
    rows[1, :4], rows[2, :13] = -1, -1  # rows of 17, 13 and 4 tokens slide each at its own time
    for cuts in ([1] * 17, [14, 1, 1, 1]):
        reader = SlidingReader(model, most)
        state: Any = reader.start(3, 17)
        count = 0
        for width in cuts:
            out = reader.logits(rows[:, count : count + width], state, last=True)
            state, count = out.state, count + width
            for b, row in enumerate(rows[:, :count].tolist()):
                real = [token for token in row if token >= 0]
                if real:
                    torch.testing.assert_close(out.y[b, -1], last(model, real, most), rtol=0, atol=1e-12)
                    alone = reader.logits(rows[b : b + 1, :count], last=True).y[0, -1]
                    torch.testing.assert_close(out.y[b, -1], alone, rtol=0, atol=1e-12)


def test_rows_of_its_state_are_selected_as_beam_search_does() -> None:
    model, tokens = writer(), torch.randint(0, 11, (2, 9))
    reader = SlidingReader(model, 4)
    state = select(reader.logits(tokens[:, :7], reader.start(2, 9)).state, torch.tensor([1, 1, 0]))
    out = reader.logits(tokens[[1, 1, 0], 7:8], state, last=True)
    torch.testing.assert_close(out.y[2, -1], last(model, tokens[0, :8].tolist(), 4), rtol=0, atol=1e-12)


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("trained", [None, 6])
def test_generate_slides_and_says_so_once(trained: int | None, recompute: bool) -> None:
    """A26: a model trained on rows of 6 wrote noise from the seventh token on; one with 6 positions stopped."""
    model = writer(64 if trained else 6)
    model.trained_length = trained
    assert model.window == 6
    prompt = torch.tensor([[-1, -1, 3, 1, 4], [2, 7, 1, 8, 2]])
    with pytest.warns(UserWarning, match=SAYS.format(6)) as warnings_raised:
        rows = generate(model, prompt, 20, temperature=0, recompute=recompute)
    assert len(warnings_raised) == 1
    for row in rows.tolist():
        real = [token for token in row if token >= 0]
        for n in range(len(real) - 20, len(real)):
            assert int(last(model, real[:n], 6).argmax()) == real[n]


def test_generate_goes_on_from_a_state_and_slides() -> None:
    model, prompt = writer(6), torch.tensor([[3, 1, 4, 1]])
    state = model.logits(prompt[:, :2], model.start(1, 2)).state
    with pytest.warns(UserWarning, match=SAYS.format(6)):
        rows = generate(model, prompt[:, 2:], 9, temperature=0, state=state)
    # what the state read before is not known, so the first slide keeps those that are: never more than the half
    real = prompt[0].tolist() + rows[0, 2:].tolist()
    for n in range(4, len(real)):
        assert int(last(model, real[:n], 6).argmax()) == real[n]


@pytest.mark.parametrize("beam", [1, 2])
def test_a_seq2seq_reads_its_source_again(beam: int) -> None:
    torch.manual_seed(1)
    model: Any = transformer(**SIZES, hidden=16, position="learned", length=5).double().eval()
    source = torch.tensor([[3, 1, 4, -1], [1, 5, 9, 2]])
    with pytest.warns(UserWarning, match=SAYS.format(5)):
        rows = generate(model, None, 12, source=source, temperature=0, beam=beam, stop=-2)
    for b, row in enumerate(rows.tolist() if beam == 1 else []):
        for n in range(12):
            logits = last(model, [model.begin, *row[:n]], 5, source=source[b : b + 1])
            assert int(logits.argmax()) == row[n]


def test_within_its_length_nothing_is_said_and_nothing_changes() -> None:
    model = writer(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = generate(model, torch.tensor([[3, 1]]), 7, temperature=0)  # the last token is not read
        model.judge(rows)
    assert rows.shape == (1, 9)


def test_judging_rows_beyond_the_table_scores_each_token_by_the_rule() -> None:
    model = writer(5)
    rows = torch.randint(0, 11, (3, 14))
    rows[1, :3], rows[2, 9:] = -1, -1
    with pytest.warns(UserWarning, match=SAYS.format(5)):
        total, count = model.judge(rows).totals["bits per byte"]
    bits = torch.zeros((), dtype=torch.float64)
    for row in rows.tolist():
        real = [token for token in row if token >= 0]
        for n in range(1, len(real)):
            bits -= last(model, real[:n], 5).log_softmax(-1)[real[n]].detach() / torch.tensor(2.0).log()
    assert int(count) == 13 + 10 + 8
    torch.testing.assert_close(total, bits, rtol=0, atol=1e-6)


def test_encoders_and_pairs_are_judged_beyond_the_table_too() -> None:
    encoder: Any = bert(**SIZES, length=6).double().eval()
    rows = torch.randint(0, 11, (4, 40))
    with pytest.warns(UserWarning, match=SAYS.format(6)):
        judged = encoder.judge(rows)
    read, targets = encoder.hide(rows, fixed=True)
    pieces = [encoder.logits(read[:, first : first + 6]).y[:, 0 if not first else 3 :] for first in range(0, 37, 3)]
    y = torch.cat(pieces, 1)[:, :40].log_softmax(-1)
    bits = -(y.gather(2, targets.clamp_min(0)[..., None])[..., 0][targets >= 0]).sum() / torch.tensor(2.0).log()
    torch.testing.assert_close(judged.totals["bits per masked byte"][0], bits.detach(), rtol=0, atol=1e-6)
    model: Any = transformer(**SIZES, hidden=16, position="learned", length=5).double().eval()
    with pytest.warns(UserWarning, match=SAYS.format(5)):
        total, count = model.judge((rows[:, :5], rows[:, :9])).totals["bits per token"]
    assert int(count) == 4 * 10 and bool(total.isfinite())


def test_evaluation_reads_windows_that_fit_and_says_so_once() -> None:
    model = writer(6)
    text = torch.randint(0, 11, (50,), dtype=torch.uint8)
    with pytest.warns(UserWarning, match=SAYS.format(6)) as warnings_raised:
        result = evaluate(model, text, 32)
    assert len(warnings_raised) == 1 and result == evaluate(model, text, 6)


def test_what_has_no_table_slides_nowhere() -> None:
    model = gpt(**SIZES, position="rotary")
    model.trained_length = 4
    assert model.window is None
    with pytest.warns(UserWarning, match="was trained on rows of 4"):
        generate(model, torch.tensor([[3, 1]]), 5, temperature=0)
