"""The best rows of a beam search: against a naive search, and against transformers."""

import pytest
import torch
import transformers
from torch import Tensor

from kinformer.core.model import Writer
from kinformer.decoding.beam import length_norm
from kinformer.decoding.generate import generate
from tests.decoding.writers import VOCAB, writer


def naive_best(
    model: Writer, prompt: list[int], steps: int, beam: int, best: int, stop: int, penalty: float
) -> list[tuple[list[int], float]]:
    """The best rows with their scores, from lists of all continuations of every kept row."""
    live, ended = [(0.0, list(prompt))], []
    for step in range(1, steps + 1):
        longer = []
        for score, row in live:
            likely = model.logits(torch.tensor([row])).y[0, -1].log_softmax(-1).tolist()
            longer += [(score + value, [*row, token]) for token, value in enumerate(likely)]
        longer.sort(key=lambda pair: -pair[0])
        ended += [(score / ((5 + step) / 6) ** penalty, row) for score, row in longer[:beam] if row[-1] == stop]
        live = [pair for pair in longer if pair[1][-1] != stop][:beam]
    ended += [(score / ((5 + steps) / 6) ** penalty, row) for score, row in live]
    ended.sort(key=lambda pair: -pair[0])
    return [(row + [-1] * (len(prompt) + steps - len(row)), score) for score, row in ended[:best]]


@pytest.mark.parametrize(("beam", "best", "stop", "penalty"), [(3, 2, 0, 0.6), (4, 4, 4, 0.0), (5, 3, 2, 2.0)])
def test_the_best_rows_and_scores_are_those_of_a_naive_search(
    beam: int, best: int, stop: int, penalty: float, float64: None
) -> None:
    model, prompts, steps_heard = writer("rotary"), [[1, 2, 3], [6, 0, 5]], list[Tensor]()
    rows = generate(
        model,
        prompts,
        4,
        beam=beam,
        best=best,
        stop=stop,
        length_penalty=penalty,
        on_tokens=lambda new, likely: steps_heard.append(likely),
    )
    expected = [pair for prompt in prompts for pair in naive_best(model, prompt, 4, beam, best, stop, penalty)]
    assert rows.tolist() == [row for row, _ in expected]
    lengths = (rows[:, 3:] >= 0).sum(1).tolist()
    assert len(set(lengths)) > 1
    sums = torch.stack(steps_heard).sum(0).tolist()
    scores = [total / length_norm(length, penalty) for total, length in zip(sums, lengths, strict=True)]
    assert scores == pytest.approx([score for _, score in expected])


def test_the_first_of_the_best_rows_is_the_only_one_without_best(float64: None) -> None:
    model, prompts = writer("memory"), [[4], [1, 2, 3]]
    several = generate(model, prompts, 5, beam=4, best=3)
    assert torch.equal(several[::3], generate(model, prompts, 5, beam=4))
    assert len({tuple(row) for row in several.tolist()}) == 6


def test_the_prompt_alone_stands_for_rows_that_do_not_exist(float64: None) -> None:
    rows = generate(writer("rotary"), [[1, 2]], 1, beam=9, best=9).tolist()
    assert sorted(row[2] for row in rows[:VOCAB]) == list(range(VOCAB))
    assert rows[VOCAB:] == [[1, 2, -1]] * 2


@pytest.mark.parametrize("repetition_penalty", [None, 1.7])
def test_transformers_has_the_same_best_rows(
    repetition_penalty: float | None, float64: None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import kinformer as kf

    torch.manual_seed(1)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32, "vocab_size": 11}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=None, initializer_range=0.7)
    peer = transformers.GPT2LMHeadModel(config).eval()
    folder = tmp_path_factory.mktemp("peer")
    peer.save_pretrained(folder)
    model, ids = kf.load(folder).double(), torch.tensor([[1, 2, 3], [4, 5, 5]])
    options = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 6, "length_penalty": 0.0}
    options |= {} if repetition_penalty is None else {"repetition_penalty": repetition_penalty}
    theirs = peer.double().generate(ids, do_sample=False, pad_token_id=0, **options)
    assert model.generate(ids, **options).tolist() == theirs.tolist()
