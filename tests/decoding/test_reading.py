"""A text that is read once: the same as reading it again before every question, and the same from a file."""

from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kinformer.core.discover import examples
from kinformer.core.mechanism import NoState
from kinformer.core.model import Writer
from kinformer.core.state import leaves
from kinformer.decoding.generate import generate
from kinformer.decoding.prefill import PrefilledText, prefill
from kinformer.decoding.saved_state import StateError, fingerprint, load_reading, save_reading
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.sinkhorn_transformer import sinkhorn_transformer
from kinformer.members.transformer import transformer
from tests.decoding.writers import FORMS, VOCAB, writer

TEXT = torch.randint(0, VOCAB, (1, 23), generator=torch.Generator().manual_seed(5))
pytestmark = pytest.mark.filterwarnings("ignore:.*positions that this model has learned")


def continuations(model: Writer, reading: PrefilledText, prompts: list[list[int]], beam: int) -> list[list[int]]:
    """What the model says after each prompt, in one batch."""
    width = max(map(len, prompts))
    rows = torch.tensor([[-1] * (width - len(p)) + [int(reading.last), *p] for p in prompts])
    state = reading.times(len(prompts))
    return generate(model, rows, 4, temperature=0, beam=beam, state=state)[:, width + 1 :].tolist()


@pytest.mark.parametrize(("form", "beam"), [*((form, 1) for form in FORMS), ("memory", 2)])
def test_asking_is_reading_again(form: str, beam: int, float64: None, tmp_path: Path) -> None:
    """However the text is cut, with several questions of unequal lengths, and from a file."""
    model = writer(form)
    prompts = [[], [4, 4, 0, 3, 1]]
    whole = [torch.cat([TEXT[0], torch.tensor(p, dtype=torch.long)])[None] for p in prompts]
    expected = [generate(model, row, 4, temperature=0, beam=beam)[0, -4:].tolist() for row in whole]
    reading = prefill(model, TEXT.split(4, 1), 23)
    assert reading.tokens == 23
    save_reading(reading, model, tmp_path / "state")
    for loaded in (reading, prefill(model, [TEXT], 23), load_reading(tmp_path / "state", model)):
        assert continuations(model, loaded, prompts, beam) == expected


def readers(most: int | None) -> Iterator[tuple[str, Writer]]:
    """The first examples of each member, at most so many, of those that read text and keep a state."""
    members = groupby(examples("members"), key=lambda pair: pair[0])
    for name, example in (pair for _, pairs in members for pair in islice(pairs, most)):
        model: object = example.make()
        if isinstance(model, Writer) and model.reads == "text":
            try:
                model.start(1, 13)
            except NoState:
                continue
            yield name, model.double()


@pytest.mark.parametrize("size", [13, pytest.param(6, marks=pytest.mark.prove)])
def test_the_saved_state_of_every_member_goes_on(size: int, tmp_path: Path, prove: bool) -> None:
    """The file returns every number, and a text continued from it is the text continued from its prompt."""
    count = 0
    for name, model in readers(None if prove else 2):
        text = model.sample(1, 13, 0)
        reading = prefill(model, text.split(size, 1), 13)
        save_reading(reading, model, tmp_path / "state")
        loaded = load_reading(tmp_path / "state", model)
        for (place, leaf), (same, restored) in zip(leaves(reading.state), leaves(loaded.state), strict=True):
            assert place == same and leaf.dtype == restored.dtype and torch.equal(leaf, restored), name
        tensors = [len({id(leaf) for _, leaf in leaves(each.state)}) for each in (reading, loaded)]
        assert tensors[0] == tensors[1], f"{name}: layers that share positions share them afterwards too"
        assert (int(loaded.last), loaded.tokens) == (int(text[0, -1]), 13)
        expected = generate(model, text, 3, temperature=0)[:, 13:]
        assert torch.equal(generate(model, loaded.last, 3, temperature=0, state=loaded.times(1))[:, 1:], expected), name
        count += 1
    assert count > 40


def test_a_state_goes_on_where_the_table_of_positions_ends() -> None:
    """A sort of blocks knows no block beyond its table, and a row that fills the table exactly is within it."""
    torch.manual_seed(0)
    model = sinkhorn_transformer(d=16, depth=2, heads=2, block=4, length=16, vocab=VOCAB).eval()
    for length, steps in ((7, 3), (12, 5), (15, 9), (16, 1), (30, 20)):
        text = model.sample(1, length, 0)
        reading = prefill(model, text.split(3, 1), length)
        expected = generate(model, text, steps, temperature=0)[:, length:]
        assert torch.equal(generate(model, reading.last, steps, temperature=0, state=reading.times(1))[:, 1:], expected)


def test_it_says_how_much_it_has_read_and_leaves_the_model_as_it_was() -> None:
    model, progress = writer("rotary").train(), list[int]()
    prefill(model, TEXT.split(10, 1), 5, progress.append)
    assert progress == [10, 20, 23] and model.training


def test_what_keeps_no_state_or_reads_nothing_is_refused() -> None:
    with pytest.raises(NoState):
        prefill(bert(d=16, depth=1, heads=2, vocab=VOCAB), [TEXT], 23)
    with pytest.raises(ValueError, match="reads a source and writes a target"):
        prefill(transformer(d=16, depth=1, heads=2, vocab=VOCAB), [TEXT], 23)
    with pytest.raises(ValueError, match="the text to read is empty"):
        prefill(writer("rotary"), [], 0)


# Files that are none of this model's ---------------------------------------------------------------------------------


@pytest.fixture
def saved_reading(tmp_path: Path) -> tuple[Writer, Path]:
    model = writer("rotary")
    save_reading(prefill(model, [TEXT], 23), model, tmp_path / "state")
    return model, tmp_path / "state"


def refused(path: Path, model: Writer, message: str) -> None:
    with pytest.raises((StateError, FileNotFoundError), match=message) as caught:
        load_reading(path, model)
    assert "\n" not in str(caught.value)


def test_another_models_state_is_refused(saved_reading: tuple[Writer, Path]) -> None:
    model, path = saved_reading
    refused(path, writer("rotary", seed=4), "is the state of another model: weights or keywords differ")
    torch.manual_seed(3)
    refused(path, gpt(d=16, depth=2, heads=2, vocab=VOCAB), "is the state of another model")
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    refused(path, model, "is the state of another model")


def test_keywords_that_are_no_weights_tell_models_apart() -> None:
    first, other = (writer("memory") for _ in range(2))
    assert fingerprint(first) == fingerprint(other)
    other.member.keywords["memory"] = 5
    assert fingerprint(first) != fingerprint(other)


def test_a_file_that_is_cut_changed_or_foreign_is_refused(saved_reading: tuple[Writer, Path]) -> None:
    model, path = saved_reading
    data = path.read_bytes()
    for size in (0, 7, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        refused(path, model, "is truncated or not a state file")
    for place in range(9, len(data), 97):  # a byte changed anywhere
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refused(path, model, "is truncated|is not a state file|is damaged|has edition|is the state of another")
    path.write_bytes(b"no tensors at all" * 10)
    refused(path, model, "is truncated or not a state file")
    save_file({"x": torch.zeros(2)}, path)
    refused(path, model, "is not a state file: kinformer did not write it")
    path.unlink()
    refused(path, model, "there is no file or folder")


def test_a_file_is_replaced_in_one_step(saved_reading: tuple[Writer, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = saved_reading
    data = path.read_bytes()

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kinformer.checkpoint.atomic_files.os.replace", full)
    with pytest.raises(OSError, match="No space left on device; the old content is unchanged"):
        save_reading(prefill(model, [TEXT[:, :4]], 4), model, path)
    assert path.read_bytes() == data and [file.name for file in path.parent.iterdir()] == [path.name]
