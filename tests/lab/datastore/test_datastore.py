"""Datastores: their keys and tokens, search results, refusals, and builds that end early."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kinformer.checkpoint import atomic_files as files
from kinformer.checkpoint.tokenizer import Tokenizer
from kinformer.lab.data.support.split_tokens import SplitTokens
from kinformer.lab.datastore import build_datastore as building
from kinformer.lab.datastore.datastore import Datastore, DatastoreError
from kinformer.members.gpt import gpt
from kinformer.members.transformer_xl import transformer_xl
from kinformer.models.support.hidden_taps import Tap

LENGTH = 16
BEGINS = torch.tensor([0, 40, 41, 41, 110])


def model(seed: int = 0, **keywords: Any) -> Any:
    torch.manual_seed(seed)
    return gpt(**{"d": 8, "depth": 1, "heads": 2, **keywords}).eval()


def text(count: int = 200, *, documents: bool = True) -> SplitTokens:
    tokens = torch.randint(256, (count,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return SplitTokens(tokens, BEGINS if documents else None)


def built(folder: Path, **keywords: Any) -> Datastore:
    options = {"length": LENGTH, "shard": 400, **keywords}
    return Datastore.build(folder, options.pop("model", None) or model(), options.pop("text", text()), **options)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def store_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("datastore") / "ds"
    built(folder, dtype="float32")
    return folder


def test_it_lies_on_the_cpu_whatever_the_default_device_is(store_folder: Path, tmp_path: Path) -> None:
    plain, options = Datastore.open(store_folder), {"model": model(), "text": text()}
    with torch.device("meta"):
        other = Datastore.open(store_folder)
        assert other.values().equal(plain.values()) and other.context(3) == plain.context(3)
        built(tmp_path / "ds", dtype="float32", **options)
    assert contents(tmp_path / "ds") == contents(store_folder)


def places(part: SplitTokens) -> Iterator[tuple[int, int, int]]:
    """Every token that has one after it in its document, with where that begins and ends."""
    for begin, end in pairwise([*part.document_starts.tolist(), len(part.tokens)]):
        yield from ((at, begin, end) for at in range(begin, end - 1))


def test_each_token_has_a_key_that_has_seen_its_window_and_the_next_token(store_folder: Path) -> None:
    store, part, tap = Datastore.open(store_folder), text(), Tap(model())
    every = list(places(part))
    assert len(store) == len(every) == 200 - 4
    assert len(store.manifest.parts[0].shards) > 3
    keys = store.keys.at(torch.arange(len(store)))
    for number in (*range(0, 60, 5), *range(60, 196, 9), 195):
        at, begin, end = every[number]
        ends = [min(begin + LENGTH, end - 1)]  # of windows: each half a window after the one before
        while ends[-1] <= at:
            ends.append(min(ends[-1] + LENGTH // 2, end - 1))
        window = part.tokens[max(begin, ends[-1] - LENGTH) : at + 1].long()
        torch.testing.assert_close(keys[number], tap(window[None]).states[0, -1])
        assert int(store.tokens(torch.tensor(number))) == int(part.tokens[at + 1])
        context = store.context(number, 5, 3)
        assert context.before == part.tokens[max(begin, at - 4) : at + 1].tolist()
        assert [context.next, *context.after] == part.tokens[at + 1 : min(at + 5, end)].tolist()


def test_shards_are_searched_as_one(store_folder: Path, tmp_path: Path) -> None:
    queries = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    many, single = Datastore.open(store_folder), built(tmp_path / "one", dtype="float32", shard=1 << 20)
    assert len(single.manifest.parts[0].shards) == 1
    for part in zip(many.search(queries, 9), single.search(queries, 9), strict=True):
        torch.testing.assert_close(*part)
    distances = (single.keys.at(torch.arange(len(single)))[None] - queries[:, None]).double().square().sum(-1)
    far, near = distances.sort(dim=1, stable=True)
    result = many.search(queries, 9)
    assert torch.equal(result.places, near[:, :9]) and torch.equal(result.tokens, single.tokens(near[:, :9]))
    torch.testing.assert_close(result.distances, far[:, :9].float())


def test_more_than_there_are_and_a_store_of_one_key(tmp_path: Path) -> None:
    store = built(tmp_path, text=torch.tensor([65, 66]))
    result = store.search(store.keys.at(torch.tensor([0])).float(), 8)
    assert (result.distances.tolist(), result.tokens.tolist(), result.places.tolist()) == ([[0.0]], [[66]], [[0]])


def test_tokens_of_any_whole_numbers_are_kept(tmp_path: Path) -> None:
    wide = torch.randint(700, (60,), generator=torch.Generator().manual_seed(0))
    for kind in (torch.uint16, torch.uint32, torch.int32, torch.int64):
        store = built(tmp_path / str(kind), model=model(vocab=700), text=SplitTokens(wide.to(kind), None))
        assert torch.equal(store.values().long(), wide[1:]), kind
    with pytest.raises(ValueError, match="expected tokens: whole numbers of at least 0"):
        built(tmp_path / "below", text=SplitTokens(wide - 1000, None))


def test_float16_is_the_nearest_float16_of_float32(store_folder: Path, tmp_path: Path) -> None:
    half, every = built(tmp_path), torch.arange(196)
    assert torch.equal(half.keys.at(every), Datastore.open(store_folder).keys.at(every).half())


def test_a_memory_is_carried_through_a_lane(tmp_path: Path) -> None:
    torch.manual_seed(0)
    xl = transformer_xl(d=8, depth=2, heads=2, segment=8, memory=8).eval()
    store, tokens = built(tmp_path, model=xl, text=text(60, documents=False), dtype="float32"), text(60).tokens.long()
    state, states = xl.start(1, 60), []
    for piece in tokens[:-1].split(LENGTH):
        tapped = Tap(xl)(piece[None], state)
        state = tapped.out.state
        states.append(tapped.states[0])
    assert store.manifest.parts[0].stride == 0
    torch.testing.assert_close(store.keys.at(torch.arange(59)), torch.cat(states))


def test_what_is_appended_stands_behind_what_was_there(store_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    shutil.copytree(store_folder, folder)
    new = torch.randint(256, (50,), dtype=torch.uint8)
    store = built(folder, dtype="float32", text=new, append=True, data="news")
    assert len(store) == 196 + 49 and [part.data for part in store.manifest.parts] == ["a text", "news"]
    assert torch.equal(store.tokens(torch.arange(196, 245)), new[1:].long())
    alone = built(tmp_path / "alone", dtype="float32", text=new)
    every = torch.arange(49)
    assert torch.equal(store.keys.at(every + 196), alone.keys.at(every))
    assert store.context(196).data == "news" and store.context(195).data == "a text"
    assert {name: data for name, data in contents(folder).items() if name in contents(store_folder)}.items() >= {
        name: data for name, data in contents(store_folder).items() if name != "store.json"
    }.items()


def test_an_append_that_ended_is_not_made_again_by_going_on(store_folder: Path, tmp_path: Path) -> None:
    folder, new = spoiled(store_folder, tmp_path / "ds"), text(50, documents=False)
    first = built(folder, dtype="float32", text=new, append=True, resume=True, data="news")
    before = contents(folder)
    assert len(built(folder, dtype="float32", text=new, append=True, resume=True, data="news")) == len(first)
    assert contents(folder) == before
    assert len(built(folder, dtype="float32", text=new, append=True, data="news")) > len(first)


@pytest.mark.parametrize("place", [-1, 196])
def test_a_key_that_is_not_there_is_refused(store_folder: Path, place: int) -> None:
    store = Datastore.open(store_folder)
    assert len(store) == 196
    with pytest.raises(ValueError, match=f"got the numbers {place} to {place}, expected 0 to 195"):
        store.keys.at(torch.tensor([place]))


def test_a_build_that_ends_at_any_write_is_gone_on_with_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every write in turn fails as on a full disk; what is there then is no datastore, and harms none."""
    write_file, count = files._write_synced, 0

    def full(path: Path, data: bytes) -> None:
        nonlocal count
        count -= 1
        if count < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_file(path, data)

    built(tmp_path / "whole", shard=1200)
    complete, folder, failed = contents(tmp_path / "whole"), tmp_path / "ds", 0
    monkeypatch.setattr(files, "_write_synced", full)
    while True:
        count = 1 if failed else 0  # the first write of all, then one more each time
        try:
            built(folder, shard=1200, resume=True)
            break
        except OSError as error:
            assert "No space left on device" in str(error) and "\n" not in str(error)
            failed += 1
        with pytest.raises(DatastoreError, match="there is no datastore in .*ds; "):
            Datastore.open(folder)
    assert failed >= 3 + 3 and contents(folder) == complete


def test_an_append_that_fails_leaves_the_datastore(
    store_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "ds"
    shutil.copytree(store_folder, folder)

    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(building, "write", full)
        with pytest.raises(OSError, match="No space left"):
            built(folder, dtype="float32", append=True, data="more")
    assert len(Datastore.open(folder)) == 196
    with pytest.raises(DatastoreError, match="is unfinished; continue it with --resume"):
        built(folder, dtype="float32", append=True, data="more")
    with pytest.raises(DatastoreError, match="the unfinished datastore .* has another data"):
        built(folder, dtype="float32", append=True, resume=True, data="other")
    assert len(built(folder, dtype="float32", append=True, resume=True, data="more")) == 2 * 196


def test_two_builders_in_one_folder(tmp_path: Path) -> None:
    with building.lock_folder(tmp_path), pytest.raises(DatastoreError, match="another process is building in"):
        built(tmp_path)
    assert len(built(tmp_path)) == 196


def spoiled(store_folder: Path, folder: Path) -> Path:
    shutil.copytree(store_folder, folder)
    return folder


@pytest.mark.parametrize("name", ["store.json", "000.text.safetensors", "000.00001.keys.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "cut", "empty", "longer", "other"])
def test_a_spoiled_file_is_refused_in_one_line(store_folder: Path, tmp_path: Path, name: str, damage: str) -> None:
    path = spoiled(store_folder, tmp_path / "ds") / name
    data = path.read_bytes()
    path.unlink()
    if damage != "missing":
        new = {"cut": data[:-7], "empty": b"", "longer": data + b" " * 9 + b"]", "other": b"\xff" * len(data)}
        path.write_bytes(new[damage])
    with pytest.raises(
        DatastoreError,
        match=r"there is no datastore|is missing|truncated|is damaged: got|has no tensor|is not a manifest",
    ) as e:
        Datastore.open(tmp_path / "ds")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edition": 2}, "has another format: got edition 2"),
        ({"width": 0}, "its dtype or width is impossible"),
        ({"width": 9}, "has no tensor keys of shape"),
        ({"dtype": "float64"}, "its dtype or width is impossible"),
        ({"model": 3}, "expected the entries model"),
        ({"parts": [{}]}, "a part lacks entries, expected data"),
    ],
)
def test_a_manifest_is_looked_at(store_folder: Path, tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = spoiled(store_folder, tmp_path / "ds") / "store.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DatastoreError, match=message):
        Datastore.open(tmp_path / "ds")


def test_another_model_or_tokenizer_is_refused(store_folder: Path, tmp_path: Path) -> None:
    store, other = Datastore.open(store_folder), model()
    store.check(model())
    other.head.weight.data[0, 0] += 1
    with pytest.raises(DatastoreError, match="was built with another model: its weights or keywords differ"):
        store.check(other)
    folder = spoiled(store_folder, tmp_path / "ds")
    with pytest.raises(DatastoreError, match="belongs to another model: its weights"):
        built(folder, model=other, append=True)
    with pytest.raises(DatastoreError, match="has keys in float32"):
        built(folder, append=True)
    speaks = model()
    speaks.tokenizer = Tokenizer("{}")
    with pytest.raises(DatastoreError, match="was built with another tokenizer"):
        store.check(speaks)


def test_what_is_there_is_not_written_over(store_folder: Path, tmp_path: Path) -> None:
    folder = spoiled(store_folder, tmp_path / "ds")
    with pytest.raises(DatastoreError, match="already holds a datastore; add to it with --append"):
        built(folder, data="other")
    assert contents(folder) == contents(store_folder)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"text": torch.zeros(1, dtype=torch.uint8)}, "no token has a next token"),
        ({"text": torch.zeros(0, dtype=torch.uint8)}, "no token has a next token"),
        ({"stride": 17}, "wrong stride for windows of 16: got 17"),
        ({"tap": "5"}, "gpt has no hidden state '5'"),
    ],
)
def test_what_makes_no_datastore_leaves_nothing(tmp_path: Path, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        built(tmp_path / "ds", **keywords)
    assert not (tmp_path / "ds").exists()


@pytest.mark.parametrize(("factor", "offset"), [(1e-8, 0.0), (1.0, 1000.0), (1.0, 30.0), (1.0, 0.0)])
def test_keys_that_half_precision_does_not_tell_apart_are_refused(tmp_path: Path, factor: float, offset: float) -> None:
    """Of keys near 0, and of those that lie far from 0 and close together; float32 keeps both."""
    near = model()
    for name, weight in near.named_parameters():
        if "norm" in name:
            weight.data *= factor
            weight.data += offset * name.endswith("bias")
    wide = built(tmp_path / "wide", model=near, dtype="float32").keys.at(torch.arange(40)).double()
    half = wide.half().double()
    error = float(((half - wide).square().sum() / (wide - wide.mean(0)).square().sum()).sqrt())
    if error < 0.01:
        assert factor == 1 and offset < 100 and len(built(tmp_path / "ds", model=near))
        return
    with pytest.raises(
        ValueError, match=r"float16 is too coarse .*% of their spread around the mean. .*--dtype float32"
    ) as caught:
        built(tmp_path / "ds", model=near)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("factor", "message"), [(1e6, "build the datastore with --dtype float32"), (torch.nan, "the model computes NaN")]
)
def test_keys_that_are_not_finite_are_refused(tmp_path: Path, factor: float, message: str) -> None:
    large = model()
    norms: list[Tensor] = [p for n, p in large.named_parameters() if "norm" in n]
    for weight in norms:
        weight.data *= factor
    with pytest.raises(ValueError, match=message):
        built(tmp_path / "ds", model=large)
    with pytest.raises(DatastoreError):
        Datastore.open(tmp_path / "ds")
