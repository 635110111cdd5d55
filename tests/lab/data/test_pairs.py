"""Pairs from a file: what is read, how it is split, batches that are padded, and one line for what is wrong."""

from pathlib import Path

import pytest
import torch

from kinformer.lab.data.pairs import PairData, read, rows
from kinformer.lab.data.spec import read_spec
from kinformer.lab.train.fit import fit
from kinformer.members.bert import bert
from kinformer.members.transformer import transformer

LINES = [f"source {n}\ttarget {'x' * (n % 7)}{n}" for n in range(60)]


def written(folder: Path, lines: list[str], end: str = "\n") -> str:
    file = folder / "pairs.tsv"
    file.write_bytes("".join(line + end for line in lines).encode())
    return str(file)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_every_line_is_a_pair_of_one_split(tmp_path: Path, end: str) -> None:
    pairs = read_spec(f"pairs={written(tmp_path, LINES, end)}")
    assert isinstance(pairs, PairData)
    every = [*pairs.train, *pairs.valid, *pairs.test]
    assert sorted(every) == sorted(tuple(line.encode().split(b"\t")) for line in LINES)
    assert (len(pairs.valid), len(pairs.test)) == (3, 3)


def test_the_split_is_by_source_whatever_the_order(tmp_path: Path) -> None:
    """What is a source twice would else be learned from and measured; a sorted file would be measured on its end."""
    twice = [*LINES, *(f"{line.split(chr(9))[0]}\tanother" for line in LINES)]
    first, other = (read(written(tmp_path, lines)) for lines in (twice, twice[::-1]))
    for name in ("train", "valid", "test"):
        assert {pair[0] for pair in getattr(first, name)} == {pair[0] for pair in getattr(other, name)}
    sources = [{pair[0] for pair in lot} for lot in (first.train, first.valid, first.test)]
    assert sum(map(len, sources)) == len(set().union(*sources)) == 60


def test_rows_are_bytes_padded_behind() -> None:
    source, target = rows([(b"ab", b"c"), ("é".encode(), b"cde")])
    assert source.tolist() == [[97, 98], [195, 169]] and target.tolist() == [[99, -1, -1], [99, 100, 101]]


def test_batches_are_drawn_by_seed_and_step_and_long_pairs_are_left_out(tmp_path: Path) -> None:
    pairs = read(written(tmp_path, [*LINES, f"long\t{'y' * 30}"]))
    first, repeated, other = (pairs.batches(4, 20, seed, 1000) for seed in (3, 3, 4))
    for step in (0, 5):
        assert all(torch.equal(a, b) for a, b in zip(first.at(step), repeated.at(step), strict=True))
    assert not torch.equal(first.at(0)[0], other.at(0)[0]) and not torch.equal(first.at(0)[0], first.at(1)[0])
    assert pairs.longest_length(20) == max(len(target) + 1 for _, target in pairs.up_to_length(20).train) <= 21
    assert (
        sum(len(source) for source, _ in pairs.batches(4, 20, 0, 25).validation_batches) == 1
    )  # 25 bytes hold one of them
    assert sum(len(source) for source, _ in first.validation_batches) == len(pairs.up_to_length(20).valid)


WRONG = {
    "empty": ([], "is empty; write a line for each row"),
    "one source": (["a\tb", "a\tc"], "has only one distinct source; give at least two"),
    "a column": (["a\tb", "c"], "line 2 of .* has 1 column, expected 2"),
    "three columns": (["a\tb\tc"], "line 1 of .* has 3 columns, expected 2"),
    "no target": (["a\tb", "c\t"], "line 2 of .* has an empty target"),
    "no source": (["a\tb", "\tc"], "line 2 of .* has an empty source"),
    "a blank line": (["a\tb", "", "c\td"], "line 2 of .* has 1 column"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, name: str) -> None:
    lines, says = WRONG[name]
    with pytest.raises(ValueError, match=says) as caught:
        read(written(tmp_path, lines))
    assert "\n" not in str(caught.value)


def test_what_is_no_file_is_said_too(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="there is no file or folder .*none.tsv; write pairs=FILE.tsv"):
        read(str(tmp_path / "none.tsv"))
    with pytest.raises(FileNotFoundError, match="there is no file or folder /dev/zero; write pairs=FILE.tsv"):
        read("/dev/zero")
    with pytest.raises(OSError, match="Is a directory; write pairs=FILE.tsv"):
        read(str(tmp_path))
    with pytest.raises(ValueError, match="no training pair with at most 3 bytes on each side"):
        read(written(tmp_path, LINES)).up_to_length(3)


def test_fit_learns_from_pairs_says_what_it_left_out_and_refuses_others(tmp_path: Path) -> None:
    model = transformer(d=16, depth=1, heads=2, hidden=16, dropout=0.0)
    data = f"pairs={written(tmp_path, [*LINES, *(f'long {n}{chr(9)}' + 'y' * 30 for n in range(9))])}"
    with pytest.warns(UserWarning, match=r"\d of \d+ pairs have a side with more than 20 bytes and are left out"):
        history = fit(model, data, steps=2, batch=4, length=20)
    assert history.best.valid < 9 and model.trained_length is not None and 9 <= model.trained_length <= 21
    with pytest.raises(ValueError, match="this bert reads a text, but got pairs; give text=PATH"):
        fit(bert(d=16, depth=1, heads=2), data, steps=1)
    with pytest.raises(ValueError, match="is made for 11; give it vocab=256"):
        fit(transformer(d=16, depth=1, heads=2, hidden=16, vocab=11), data, steps=1)
