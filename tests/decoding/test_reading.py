"""A text that is read once: the same as reading it again before every question, and the same from a file."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from kinformer.core.mechanism import NoState
from kinformer.core.model import Writer
from kinformer.core.state import leaves
from kinformer.decoding.reading import Reading, read
from kinformer.decoding.saved import StateError, fingerprint, load_reading, save_reading
from kinformer.discover import examples
from kinformer.generation import generate
from kinformer.members.bert import bert
from kinformer.members.gpt import gpt
from kinformer.members.transformer import transformer
from tests.decoding.writers import FORMS, VOCAB, writer

TEXT = torch.randint(0, VOCAB, (1, 23), generator=torch.Generator().manual_seed(5))
pytestmark = pytest.mark.filterwarnings("ignore:.*positions that this model has learned")


def asked(model: Writer, reading: Reading, prompts: list[list[int]], beam: int) -> list[list[int]]:
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
    wanted = [generate(model, row, 4, temperature=0, beam=beam)[0, -4:].tolist() for row in whole]
    reading = read(model, TEXT.split(4, 1), 23)
    assert reading.tokens == 23
    save_reading(reading, model, tmp_path / "state")
    for one in (reading, read(model, [TEXT], 23), load_reading(tmp_path / "state", model)):
        assert asked(model, one, prompts, beam) == wanted


def members() -> Iterator[tuple[str, Callable[[], object]]]:
    """The first example of each."""
    seen: dict[str, Callable[[], object]] = {}
    for name, example in examples("members"):
        seen.setdefault(name, example.make)
    return iter(seen.items())


def test_the_state_of_every_member_comes_back_bit_for_bit(tmp_path: Path) -> None:
    found = 0
    for name, make in members():
        model = make()
        if not isinstance(model, Writer) or model.reads != "text":
            continue
        text = model.sample(1, 13, 0)
        try:
            reading = read(model, text.split(6, 1), 13)
        except NoState:
            continue
        save_reading(reading, model, tmp_path / "state")
        again = load_reading(tmp_path / "state", model)
        for (one, leaf), (other, kept) in zip(leaves(reading.state), leaves(again.state), strict=True):
            assert one == other and leaf.dtype == kept.dtype and torch.equal(leaf, kept), name
        same = [len({id(leaf) for _, leaf in leaves(each.state)}) for each in (reading, again)]
        assert same[0] == same[1], f"{name}: layers that share positions share them afterwards too"
        assert (int(reading.last), reading.tokens) == (int(again.last), again.tokens) == (int(text[0, -1]), 13)
        found += 1
    assert found > 15


def test_it_says_how_much_it_has_read_and_leaves_the_model_as_it_was() -> None:
    model, heard = writer("rotary").train(), list[int]()
    read(model, TEXT.split(10, 1), 5, heard.append)
    assert heard == [10, 20, 23] and model.training


def test_what_keeps_no_state_or_reads_nothing_is_refused() -> None:
    with pytest.raises(NoState):
        read(bert(d=16, depth=1, heads=2, vocab=VOCAB), [TEXT], 23)
    with pytest.raises(ValueError, match="reads a source and writes a target"):
        read(transformer(d=16, depth=1, heads=2, vocab=VOCAB), [TEXT], 23)
    with pytest.raises(ValueError, match="the text is empty"):
        read(writer("rotary"), [], 0)


# Files that are none of this model's ---------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> tuple[Writer, Path]:
    model = writer("rotary")
    save_reading(read(model, [TEXT], 23), model, tmp_path / "state")
    return model, tmp_path / "state"


def refused(path: Path, model: Writer, said: str) -> None:
    with pytest.raises((StateError, FileNotFoundError), match=said) as caught:
        load_reading(path, model)
    assert "\n" not in str(caught.value)


def test_another_models_state_is_refused(kept: tuple[Writer, Path]) -> None:
    model, path = kept
    refused(path, writer("rotary", seed=4), "is the state of another model: its weights or keywords differ")
    torch.manual_seed(3)
    refused(path, gpt(d=16, depth=2, heads=2, vocab=VOCAB), "is the state of another model")
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1e-3
    refused(path, model, "is the state of another model")


def test_keywords_that_are_no_weights_tell_models_apart() -> None:
    one, other = (writer("memory") for _ in range(2))
    assert fingerprint(one) == fingerprint(other)
    other.member.keywords["memory"] = 5
    assert fingerprint(one) != fingerprint(other)


def test_a_file_that_is_cut_changed_or_foreign_is_refused(kept: tuple[Writer, Path]) -> None:
    model, path = kept
    data = path.read_bytes()
    for size in (0, 7, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        refused(path, model, "is truncated or no state file")
    for place in range(9, len(data), 97):  # a byte changed anywhere
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        refused(path, model, "is truncated|is no state file|is damaged|is of edition|is the state of another")
    path.write_bytes(b"no tensors at all" * 10)
    refused(path, model, "is truncated or no state file")
    save_file({"x": torch.zeros(2)}, path)
    refused(path, model, "is no state file: kinformer did not write it")
    path.unlink()
    refused(path, model, "there is no file or folder")


def test_a_file_is_replaced_in_one_step(kept: tuple[Writer, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, path = kept
    data = path.read_bytes()

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kinformer.train.files.os.replace", full)
    with pytest.raises(OSError, match="No space left on device; what was there before is unchanged"):
        save_reading(read(model, [TEXT[:, :4]], 4), model, path)
    assert path.read_bytes() == data and [file.name for file in path.parent.iterdir()] == [path.name]
