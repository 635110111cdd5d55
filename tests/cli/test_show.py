"""`kinformer show`: what words mean, what pages say, and that pictures and numbers are of the sets that are read."""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.cli.__main__ import run
from kinformer.cli.support.docs import arguments, doc, heading
from kinformer.cli.support.find import FOLDERS, Page, Topic, found
from kinformer.cli.support.page import pictures
from kinformer.cli.support.parts import named
from kinformer.cli.support.sparsity import numbers
from kinformer.cli.support.topics import ALSO, TOPICS
from kinformer.core.discover import examples, kinds, members, modules
from kinformer.core.expression import parse
from kinformer.core.keywords import signature
from kinformer.core.layout import Near, Residue
from kinformer.core.needs import has_effect
from kinformer.core.pattern import Heads
from kinformer.core.patterns.causal import Causal
from kinformer.core.patterns.full import Full
from kinformer.nn.attention import Attention
from kinformer.nn.biases.alibi import ALiBi
from kinformer.nn.biases.t5 import T5
from kinformer.nn.mechanisms.lsh import LSH
from kinformer.nn.mechanisms.lsh_published import PublishedLSH
from kinformer.nn.mechanisms.retrieval import Retrieval
from kinformer.nn.mechanisms.routing import Routing
from kinformer.nn.mechanisms.routing_published import PublishedRouting
from kinformer.nn.mechanisms.shortened import Shortened
from kinformer.nn.mechanisms.softmax import Softmax
from kinformer.nn.memories.compressed_positions import BySlots, ByTokens
from kinformer.nn.memories.compression import MeanPool
from kinformer.nn.memories.compressive import Compressive
from kinformer.nn.memories.hidden import Hidden
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.nn.positions.sinusoidal import Sinusoidal
from kinformer.nn.projections.qkv import QKV
from kinformer.nn.projections.shared_qk import SharedQK
from kinformer.nn.shorteners.mean_pooled import MeanPooled
from kinformer.pages.pictures import (
    buckets,
    distance,
    global_ends,
    global_nodes,
    positions,
    retrieval,
    shortened,
    slots,
    steps,
    who_reads,
)
from kinformer.pages.pictures.support.layers import calls, clustered, joined, place_of, weighed
from kinformer.pages.pictures.support.panel import CELLS, Picture, grid, span
from kinformer.pages.pictures.support.spelled import longest, spelled

ROOT = Path(__file__).parents[2]
TOY, MEMBERS = ROOT / "tests" / "toys" / "pattern.py", ROOT / "tests" / "lab" / "train" / "tiny.py"
STRIDED = "Causal() & (Band(8) | Strided(8))"


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["show", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["show", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("kinformer: ")
    return err


def cells(out: str, beneath: str) -> list[str]:
    """The lines of a picture of up to ten positions beneath its caption, without the numbers before them."""
    after = out[out.index(beneath) :].splitlines()[3:]
    return [line[2:] for line in after]


# Words ---------------------------------------------------------------------------------------------------------------


def test_a_page_begins_with_the_class_one_came_for_and_ends_with_its_helpers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shown(capsys, "lsh", "--length", "4")
    order = ["LSH(heads, k_dim, buckets", "heads: int\n", "Source: Kitaev", "who reads whom", "beside it", "Hashed  "]
    places = [out.index(word) for word in order]
    assert places == sorted(places)
    assert "jaxtyping" not in out and "kinformer.core" not in out


def test_a_page_of_each_name_that_the_folders_hold() -> None:
    for kind in kinds():
        for file, module in modules(kind).items():
            for name in (f"{kind}/{file}", *(title for title, _ in named(module))):
                told = found(name)
                assert isinstance(told, list) and any(page.heading == f"{kind}/{file}" for page in told), name


@pytest.mark.parametrize(
    ("name", "own", "written"),
    [
        ("mechanisms/lsh", "LSH(", "\n  LSH(2, 8, 4, 2)\n"),
        ("biases/masking", "_Decay(", "\n  FunctionMasking(lambda x: "),
        ("depth/act", "_example(", "\n  from kinformer.nn.depth.act import ACT\n"),
    ],
)
def test_what_a_reader_is_told_to_write_names_nothing_that_a_file_keeps_to_itself(
    capsys: pytest.CaptureFixture[str], name: str, own: str, written: str
) -> None:
    """Of examples that begin with one of their file's own, the first that does not, or none."""
    told = found(name)
    assert isinstance(told, list) and own in inspect.getsource(told[0].examples[0])
    page = shown(capsys, name)
    assert written in page and "_Decay(" not in page and "_example(" not in page


@pytest.mark.parametrize(
    "name", ["attend", "generate", "fit", "check", "Attention", "Context", "load", "merge", "NoState"]
)
def test_the_public_functions_have_pages(capsys: pytest.CaptureFixture[str], name: str) -> None:
    out = shown(capsys, name)
    assert f"kinformer.{name}" in out and f"from kinformer import {name}" in out and f"{name}(" in out
    assert "jaxtyping" not in out


def test_a_method_of_the_public_api(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "Context.of")
    assert "of(x, mask=None)" in out and "Bool [B T]" in out
    assert "Context has no 'off'; the nearest" in refused(capsys, "Context.off")


def test_every_word_of_a_topic_leads_to_places_that_are_there() -> None:
    places = {f"{kind}/{file}" for kind in (*kinds(), *FOLDERS) for file in modules(kind)}
    assert ALSO.keys() == TOPICS.keys()
    for name, told in TOPICS.items():
        assert places.issuperset(told.places), name
        for word in (name, *ALSO[name]):
            what = found(word)
            if isinstance(what, Topic):  # otherwise a file has the name
                assert [one.place for one in what.places][: len(told.places)] == list(told.places)


def test_topics_lead_where_a_reader_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert "members/longformer" in (sparse := shown(capsys, "sparse")) and "Strided(3)" in sparse
    halting = shown(capsys, "halting", "--length", "5")
    assert "depth/act" in halting and "members/universal_transformer: how many steps each token takes" in halting
    for words, place in (
        ("factorised", "patterns/strided"),
        ("linear attention", "members/linear_transformer"),
        ("memory", "memories/compressive"),
    ):
        told = found(words)
        assert isinstance(told, Topic) and place in [one.place for one in told.places]


def test_what_only_speaks_of_a_word_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "memories/compressive" in shown(capsys, "Rae", "--length", "8")


def test_a_missing_name_lists_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no part or member 'Bannd'; the nearest" in (err := refused(capsys, "Bannd")) and "'Band'" in err
    assert "ReversibleFunction" not in (err := refused(capsys, "nope")) and "slopes" not in err  # no helpers
    assert "Bnad in 'Causal() & Bnad(3)' is not a pattern; the nearest is 'Band'" in refused(
        capsys, "Causal() & Bnad(3)"
    )
    assert "has no keyword 'dept'; the nearest is 'depth'" in refused(capsys, "gpt", "dept=3")
    assert "there is no member 'lsh', and only members, tasks and environments have keywords such as 'd=3'" in refused(
        capsys, "lsh", "d=3"
    )


def test_an_environment_shows_its_first_steps(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "t_maze", "corridor=5")
    assert "TMaze(corridor=30" in out and "kinformer train gtrxl --data env=t_maze" in out
    lines = [line.strip() for line in out.splitlines() if "....T" in line]
    assert lines[0] == "o....T" and len(lines) == 4 and "action" in lines[1] and "reward -0.1" in lines[1]
    assert "takes Discrete(2)" in shown(capsys, "masked_cartpole")


def test_own_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = shown(capsys, f"{TOY}:Alternate", "--length", "3")
    assert "Alternate()" in out and cells(out, "who reads whom")[:3] == ["██ · ·", " ·██ ·", "██ ·██"]
    assert cells(shown(capsys, f"Causal() & {TOY}:Alternate()", "--length", "2"), "who reads whom")[:2] == [
        "██ ·",
        " ·██",
    ]
    assert "d: int = 8" in shown(capsys, f"{MEMBERS}:bigram")
    assert "d: int = 8" in shown(capsys, str(MEMBERS))
    assert "has no 'Alternat'; the nearest is 'Alternate'; it has Alternate" in refused(capsys, f"{TOY}:Alternat")
    assert "has no 'Nothing'" in refused(capsys, f"{TOY}:Nothing() & Causal()")
    assert "there is no file or folder none.py" in refused(capsys, "none.py:f")
    (tmp_path / "empty.py").touch()
    assert "defines no class or function" in refused(capsys, f"{tmp_path}/empty.py")


def test_a_member_with_its_keywords(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("d=16", "heads=2", "depth=2", "window=3,9")
    out = shown(capsys, "longformer", *words)
    assert "layer 0: near (Band(3) |" in out and "layer 1: near (Band(9) |" in out
    assert out == shown(capsys, "longformer(d=16, heads=2, depth=2, window=(3, 9))")
    assert "window=3 has" not in out
    assert "window=(3, 9) has 2 values for depth=4" in refused(capsys, "longformer", "window=3,9")


# Docstrings ----------------------------------------------------------------------------------------------------------


class Told:
    """What it is, in one line.

    y = a x + b over all of it,
    on two lines.

    Choose it to read this.

        Told(1)

    a, b: two numbers
        that stand together.
    c: a third one.

    Errors: ValueError for a=0. Source: Somebody, 2020, section 2.
    """

    def __init__(self, a: int, b: float = 1.0, *, c: Float[Tensor, "B T"] | None = None):
        pass


def test_a_docstring_is_taken_apart() -> None:
    told = doc(Told)
    assert told.first == "What it is, in one line." and told.equations == ["y = a x + b over all of it, on two lines."]
    assert told.prose == ["Choose it to read this.", "    Told(1)"]
    assert told.arguments == {("a", "b"): "two numbers that stand together.", ("c",): "a third one."}
    assert (told.errors, told.source) == ("ValueError for a=0.", "Somebody, 2020, section 2.")
    assert heading("Told", Told) == "Told(a, b=1.0, *, c=None)"
    rows = list(arguments(Told, told))
    assert (
        rows[0] == ("a: int, b: float = 1.0", "two numbers that stand together.")
        and rows[1][0] == "c: Float [B T] | None = None"
    )


def test_no_page_of_a_window_promises_a_cost() -> None:
    for name in ("band", "block", "dilated", "longformer"):
        (page,) = [one for one in found(name) if isinstance(one, Page) and one.heading.endswith(name)]
        text = " ".join(one.__doc__ or "" for _, one in page.main).lower()
        assert not any(word in text for word in ("linear cost", "same cost", "cheap", "faster", "long texts")), name


# Numbers of a pattern ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [STRIDED, "Band(3)", "Causal()", "Full()", "Strided(3)", "Causal() & Band(0)", "Band(1, 0) | Tokens(1)"]
)
def test_numbers_are_those_of_a_loop(text: str) -> None:
    length, pattern = 19, parse(text)
    read = [[bool(pattern(0, 0, q, k)) for k in range(length)] for q in range(length)]
    told = numbers(pattern, length)
    keys = [sum(row) for row in read]
    assert (told.least, told.most) == (min(keys), max(keys))
    assert told.mean == pytest.approx(sum(keys) / length) and told.share == pytest.approx(sum(keys) / length**2)
    assert told.ahead == any(read[q][k] for q in range(length) for k in range(q + 1, length))
    known = [{q} for q in range(length)]
    layers = 0
    while (
        missing := [q for q in range(length) if len(known[q]) < (length if told.ahead else q + 1)]
    ) and layers < length:
        known = [known[q].union(*(known[k] for k in range(length) if read[q][k])) for q in range(length)]
        layers += 1
    assert told.steps == (None if missing else max(1, layers))


def test_an_expression_is_counted_and_drawn_in_labelled_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, STRIDED)
    read = parse(STRIDED).matrix(24)
    assert f"keys per query   {read.sum() / 24:.4g} (1 to 10) of 24" in out
    shares = re.search(r"work .*: (\S+) at 1,024, (\S+) at 4,096, (\S+) at 16,384 tokens", out)
    assert shares is not None
    first, second, third = map(float, shares.groups())
    assert 1 > first > second > third > 0  # sparser, the longer the row
    assert f"{read.float().mean():.1%} of the full matrix" in out and "every one before it in 2 layers" in out
    assert "Near(back=8, ahead=0)" in out and "Residue(n=8, back=all, ahead=0)" in out
    (picture,) = who_reads.pictures(parse(STRIDED), None)
    (panel,) = picture.panels
    assert torch.equal(panel.kind > 0, read)
    at = torch.arange(24)
    near, residue = (layout.reads(at[:, None], at) for layout in (Near(8, 0), Residue(8, torch.inf, 0)))
    assert bool((near | (panel.kind != 1)).all()) and bool((residue | (panel.kind != 2)).all())


def test_reaching_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "100.0% of pairs" not in (out := shown(capsys, "Strided(3)")) and "in however many layers" in out
    assert numbers(Strided(3), 24).reached == pytest.approx(1 / 3)


# Pictures ------------------------------------------------------------------------------------------------------------


def test_a_pattern_is_drawn_as_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "Band(2, 0)", "--length", "4")
    assert cells(out, "who reads whom")[:4] == ["██ · · ·", "████ · ·", "██████ ·", " ·██████"]


@pytest.mark.parametrize("longest_one", [1, 8, 9, 64, 100, 500])
def test_a_window_never_fills_its_drawing(longest_one: int) -> None:
    size, step = span(longest_one, None, CELLS)
    assert size == CELLS * step and (3 * longest_one <= size or size >= 2048)
    assert step == 1 or 3 * longest_one > size // 2


def test_a_cell_says_how_many_of_its_pairs_are_read() -> None:
    kind = torch.zeros(5, 5, dtype=torch.long)
    kind[0, 0], kind[0, 1], kind[1, 0], kind[4, 4] = 1, 2, 2, 1
    panel = grid("", kind, 2)
    assert panel.kind.tolist() == [[2, 0, 0], [0, 0, 0], [0, 0, 1]] and panel.level[0, 0] == 0.75
    assert panel.level[2, 2] == 1 and panel.rows == ("0", "2", "4")


def test_heads_and_layers_stand_side_by_side() -> None:
    (picture,) = who_reads.pictures(Heads(Causal(), Band(1)), 6)
    assert [panel.title for panel in picture.panels] == ["head 0: Causal()", "head 1: Band(1)"]
    assert torch.equal(picture.panels[1].kind > 0, Band(1).matrix(6))
    (page,) = found("longformer", ("d=16", "heads=2", "depth=3", "window=2,2,6"))
    (picture,) = pictures(page, 16)
    assert [panel.title.partition(":")[0] for panel in picture.panels] == ["layers 0, 1", "layer 2"]
    whole = parse("Band(6) | Tokens(1) | Rows(1)").matrix(16)
    assert torch.equal(picture.panels[1].kind > 0, whole) and picture.kinds == ("near", "wide")
    assert torch.equal(picture.panels[1].kind == 2, parse("Rows(1)").matrix(16))


@pytest.mark.parametrize("make", [lambda: LSH(2, 8, 4, 2), lambda: Routing(2, 8, 3, seed=2)])
def test_buckets_are_those_that_the_keys_are_in_and_sorted_they_are_blocks(make) -> None:
    mechanism = make()
    torch.manual_seed(0)
    layer = Attention(SharedQK(16, 2), mechanism)
    (call,) = calls(layer, clustered(12, 16))
    number = next(iter(buckets.tags_of(call).values()))
    torch.manual_seed(0)
    first, *later = next(buckets.pictures(mechanism, 12)).panels
    same = (number[:, None] == number).any(-1)
    alone = torch.eye(12, dtype=torch.bool) if isinstance(mechanism, LSH) else torch.zeros(12, 12, dtype=torch.bool)
    expected = same.tril(-1) if isinstance(mechanism, LSH) else same.tril()
    read = first.kind > 0
    assert torch.equal(read & ~alone, expected & ~alone)
    for n, panel in enumerate(later):
        order = torch.tensor([int(name) for name in panel.rows])
        assert number[order, n].tolist() == sorted(number[:, n].tolist())
        assert torch.equal(panel.kind > 0, read[order][:, order])
        assert bool((panel.kind[panel.level == 1] == (number[order, n] + 1).expand(12, 12)[panel.level == 1]).all())


def test_what_else_is_kept_with_keys_is_no_group() -> None:
    """Published routing caches how much each centroid likes a token: drawn as groups they were 2**40 kinds."""
    for mechanism, name in ((PublishedRouting(2, 8, 3, 4), "cluster"), (PublishedLSH(2, 8, 4, 3), "bucket")):
        (call,) = calls(Attention(SharedQK(16, 2), mechanism), clustered(12, 16))
        assert list(buckets.tags_of(call)) == [name]


@pytest.mark.parametrize("make", [lambda: LSH(2, 8, 4, 2), lambda: Routing(2, 8, 3, seed=2)])
def test_buckets_of_many_positions_are_shares_of_cells(make) -> None:
    torch.manual_seed(0)
    one = next(buckets.pictures(make(), CELLS)).panels
    torch.manual_seed(0)
    picture = next(buckets.pictures(make(), 10 * CELLS))
    assert "a cell is 10 by 10" in picture.note and len(picture.panels) == len(one)
    torch.manual_seed(0)
    layer = Attention(SharedQK(16, 2), make())
    (call,) = calls(layer, clustered(10 * CELLS, 16))
    read, number = weighed(call)[0].abs() > buckets.TINY, next(iter(buckets.tags_of(call).values()))
    for n, panel in enumerate(picture.panels[1:]):
        order = number[:, n].argsort(stable=True)
        its, same = read[order][:, order], number[order, n][:, None] == number[order, n]
        shares = torch.where(same, its, its / 3).view(CELLS, 10, CELLS, 10).mean((1, 3))
        torch.testing.assert_close(panel.level, shares)
        assert panel.rows == panel.columns == tuple(str(k) for k in order[::10].tolist())


def test_more_positions_than_a_member_has_are_drawn_of_those_that_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "gpt", "d=8", "heads=2", "depth=1", "length=16", "--length", "64"]) == 0
    assert "64 positions" in capsys.readouterr().out


def test_slots_of_a_memory_are_those_that_it_hands_to_its_layer() -> None:
    for places in (BySlots(), ByTokens()):  # the same tokens are in them, wherever they are said to stand
        (picture,) = slots.pictures(Compressive(4, 4, 2, MeanPool(2), places=places), 24)
        row = picture.panels[0].kind[18].tolist()  # its segment is 16..19, the memory 12..15, two slots of two before
        assert row == [0] * 8 + [3, 3, 4, 4] + [2] * 4 + [1] * 3 + [0] * 5
    (picture,) = slots.pictures(Hidden(5, 3), 20)
    kind = picture.panels[0].kind
    at = torch.arange(20)
    inside = at[:, None] // 5 == at // 5
    assert torch.equal(kind == 1, inside.tril()) and picture.kinds == ("own segment", "memory")
    assert torch.equal(kind == 2, parse("Causal() & Segment(5, 3)").matrix(20) & ~inside)


def test_the_four_pieces_of_global_tokens() -> None:
    soft, hard = (
        next(global_nodes.pictures(one.make(), 15)) for file, one in examples("depth") if file == "global_tokens"
    )
    kind = soft.panels[0].kind
    assert (kind[:3, :3] == 1).all() and (kind[:3, 3:] == 2).all() and (kind[3:, :3] == 3).all()
    assert torch.equal(kind[3:, 3:] == 4, Band(2).matrix(12))
    kind = hard.panels[0].kind
    for n in range(3):  # each reads the four tokens of its own segment alone, and these read it alone
        assert (kind[n, 3:] == 2).nonzero().flatten().tolist() == list(range(4 * n, 4 * n + 4))
        assert (kind[3:, n] == 3).nonzero().flatten().tolist() == list(range(4 * n, 4 * n + 4))


def test_a_line_of_steps_is_filled_while_tokens_take_it() -> None:
    for kind, file, word in (
        ("depth", "act", "steps"),
        ("depth", "recurrent_act", "steps"),
        ("depth", "early_exit", "exit"),
    ):
        make = next(one.make for name, one in examples(kind) if name == file)
        torch.manual_seed(0)
        layer = make().eval()
        torch.manual_seed(1)
        (picture,) = steps.pictures(layer, 7)
        torch.manual_seed(1)
        taken = layer(2 * torch.randn(1, 7, 16)).aux[word][0]
        assert picture.panels[0].level.sum(0).tolist() == taken.tolist()


def test_nodes_at_a_rows_end_are_drawn_as_the_layer_reads() -> None:
    (one,) = (one.make() for file, one in examples("depth") if file == "global_ends")
    (picture,) = global_ends.pictures(one, 8)  # blocks of 3, so the last one is 6, 7
    last = torch.arange(8) >= 6
    whole = parse("Block(3)").matrix(8) | last | last[:, None]
    assert torch.equal(picture.panels[0].kind > 0, whole)
    assert torch.equal(picture.panels[0].kind == 1, parse("Block(3)").matrix(8))


def test_what_is_found_among_far_keys_is_what_has_weight() -> None:
    torch.manual_seed(0)
    (picture,) = retrieval.pictures(Retrieval(2, 3, 6, 2, cache=1, apart=True), 15)
    kind = picture.panels[0].kind
    near, may = (parse(text).matrix(15) for text in ("Causal() & Segment(3, 1)", "Causal() & Segment(3, 7)"))
    assert torch.equal(kind == 1, near) and torch.equal(kind > 0, may)
    assert (kind == 2).sum(1).tolist() == (may & ~near).sum(1).clamp(max=2).tolist()


def test_a_bias_is_drawn_by_what_it_leaves_of_a_weight() -> None:
    slope = 2.0**-4  # of the first of two heads
    (picture,) = distance.pictures(ALiBi(2), 6)
    at = torch.arange(6)
    expected = torch.exp(-slope * (at[:, None] - at)).tril()
    torch.testing.assert_close(picture.panels[0].level, expected)
    assert list(distance.pictures(T5(2), 6)) == []  # it has learned nothing yet


def test_positions_and_shortened_keys() -> None:
    (picture,) = positions.pictures(Sinusoidal(4), 5)
    table = Sinusoidal(4)(torch.arange(5)[None])[0].float()
    torch.testing.assert_close(picture.panels[0].level, (table - table.min()) / (table.max() - table.min()))
    (picture,) = shortened.pictures(Shortened(Softmax(Full()), MeanPooled(4)), 8)
    read, made = picture.panels
    assert read.kind.tolist() == [[1, 1]] * 8 and made.kind.tolist() == [[1, 0]] * 4 + [[0, 1]] * 4


def test_a_drawing_that_is_full_is_made_longer() -> None:
    (picture,) = who_reads.pictures(parse("Block(1, 1) | Random(3, 1) | Tokens(1) | Rows(1)"), None)
    assert picture.panels[0].level.mean() < 0.7
    (picture,) = who_reads.pictures(Causal(), None)  # that stays as full as it is
    assert len(picture.panels[0].rows) == CELLS and not picture.note


def test_every_member_is_drawn_or_has_no_pattern_to_draw() -> None:
    without = {"linear_transformer", "lstm", "performer", "rfa"}
    for name in members():
        usual = {key: parameter.default for key, parameter in signature(members()[name]).parameters.items()}
        needs = members()[name].needs  # type: ignore[attr-defined]
        sizes = {key: n for key, n in (("d", 16), ("heads", 2), ("depth", 1)) if key in usual}
        small = found(name, tuple(f"{key}={n}" for key, n in sizes.items() if has_effect(key, needs, usual)))
        drawn = [one for page in small if page.heading == f"members/{name}" for one in pictures(page, 12)]
        assert all(isinstance(one, Picture) and one.panels for one in drawn)
        assert bool(drawn) != (name in without), name


def test_places_are_named_as_a_reader_counts() -> None:
    assert place_of("body.layers.3.layers.0") == "layer 3"
    assert place_of("decoder.layers.2.layers.1") == "decoder layer 2"
    assert joined(["encoder layer 0", "encoder layer 1", "encoder layer 2"]) == "encoder layers 0-2"
    assert joined(["layer 0", "layer 1", "layer 2"]) == "layers 0-2" and joined(["layer 1", "layer 3"]) == "layers 1, 3"
    assert joined([""]) == "" and joined(["layer 2"]) == "layer 2"


@pytest.mark.parametrize("text", ["Causal() & (Band(64) | Tokens(2))", "Heads(Full(), ~Block(4, 1))", "Fixed(8, 1)"])
def test_a_pattern_is_spelled_as_one_would_write_it(text: str) -> None:
    assert spelled(parse(text)) == text and parse(spelled(parse(text))) == parse(text)
    assert longest(Full()) == 0 and longest(parse("Band(3) & Random(2, 5, seed=99)")) == 5


def test_cost_is_measured_and_not_promised(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinformer.cli.support.growth.LENGTHS", (16, 32))
    out = shown(capsys, "causal", "--cost", "--length", "3")
    assert "  measured here: Causal() & it\n  rows of 16 to 32 tokens, each twice as long, width 16" in out
    out = shown(capsys, "gpt", "d=24", "heads=2", "depth=1", "--cost", "--length", "3")
    assert "rows of 16 to 32 tokens, each twice as long, width 24" in out and "\n  time " in out
    assert "measured" not in shown(capsys, "causal", "--length", "3")


# Files ---------------------------------------------------------------------------------------------------------------


def test_the_same_pictures_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lsh.png"
    assert f"the pictures are in {out}" in shown(capsys, "lsh", "--length", "6", "--out", str(out))
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 5000
    assert "is no picture; give a file that ends in .png, .svg or .pdf" in refused(capsys, "band", "--out", "band.txt")
    assert "there is no file or folder" in refused(capsys, "band", "--out", f"{tmp_path}/none/band.png")
    none = tmp_path / "none.png"
    assert "there is nothing to draw of 'rms'" in refused(capsys, "rms", "--out", str(none)) and not none.exists()


def test_weights_beside_a_learned_value_are_those_of_keys_alone() -> None:
    """A query of the published routing reads a null value of its own beside keys, whose weights are then below 1."""
    torch.manual_seed(0)
    mechanism = PublishedRouting(2, 8, 1, 12, null=True, norm="none")
    (call,) = calls(Attention(QKV(16, 2), mechanism), torch.randn(1, 12, 16))
    logits = call.queries.q[0] @ call.keys.k[0].mT * 8**-0.5  # one cluster takes all tokens
    logits = logits.masked_fill(torch.ones(12, 12).tril() == 0, -math.inf)
    assert mechanism.null_k is not None
    null = (call.queries.q[0] * mechanism.null_k).sum(-1, keepdim=True) * 8**-0.5
    expected = torch.cat([null, logits], -1).softmax(-1)[..., 1:]
    torch.testing.assert_close(weighed(call), expected, atol=1e-5, rtol=0)
