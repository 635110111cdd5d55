"""`kinformer show`: what words mean, what pages say, and that pictures and numbers are of the sets that are read."""

import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from kinformer.cli.__main__ import run
from kinformer.cli.support.name_lookup import find_pages
from kinformer.cli.support.page import Page, Topic
from kinformer.cli.support.show_page import pictures
from kinformer.core.discover import kinds, members, modules
from kinformer.core.keyword_conditions import has_effect
from kinformer.core.keywords import signature
from kinformer.core.layout import Near, Residue
from kinformer.core.pattern import Heads
from kinformer.core.pattern_parser import parse
from kinformer.core.patterns.causal import Causal
from kinformer.lab.cost.sparsity import count_pattern
from kinformer.nn.patterns.band import Band
from kinformer.nn.patterns.strided import Strided
from kinformer.pages.docstrings import arguments, doc, heading
from kinformer.pages.module_docs import public_parts
from kinformer.pages.pictures import who_reads
from kinformer.pages.pictures.support.picture_panels import Picture

ROOT = Path(__file__).parents[2]
TOY, MEMBERS = ROOT / "tests" / "toys" / "pattern.py", ROOT / "tests" / "lab" / "train" / "tiny.py"
STRIDED = "Causal() & (Band(8) | Strided(8))"


def run_show(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["show", *words]) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(["show", *words]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("kinformer: ")
    return err


def cells(out: str, caption: str) -> list[str]:
    """The lines of a picture of up to ten positions beneath its caption, without the numbers before them."""
    after = out[out.index(caption) :].splitlines()[4:]
    return [line[2:] for line in after]


# Words ---------------------------------------------------------------------------------------------------------------


def test_a_page_begins_with_the_class_one_came_for_and_ends_with_its_helpers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = run_show(capsys, "lsh", "--length", "4")
    order = [
        "LSH(heads, k_dim, buckets",
        "heads: int\n",
        "Source: Kitaev",
        "which keys each query reads",
        "also in mech",
        "Hashed  ",
    ]
    places = [out.index(word) for word in order]
    assert places == sorted(places)
    assert "jaxtyping" not in out and "kinformer.core" not in out


def test_a_page_of_each_name_that_the_folders_hold() -> None:
    for kind in kinds():
        for file, module in modules(kind).items():
            for name in (f"{kind}/{file}", *(title for title, _ in public_parts(module))):
                pages = find_pages(name)
                assert isinstance(pages, list) and any(page.heading == f"{kind}/{file}" for page in pages), name


@pytest.mark.parametrize(
    ("name", "own", "written"),
    [
        ("mechanisms/lsh", "LSH(", "\n  LSH(2, 8, 4, 2)\n"),
        ("biases/masking", "_Decay(", "\n  FunctionMasking(lambda x: "),
        ("depth/act", "_example(", "\n  from kinformer import ACT\n"),
    ],
)
def test_what_a_reader_is_told_to_write_names_nothing_that_a_file_keeps_to_itself(
    capsys: pytest.CaptureFixture[str], name: str, own: str, written: str
) -> None:
    """Of examples that begin with one of their file's own, the first that does not, or none."""
    pages = find_pages(name)
    assert isinstance(pages, list) and own in inspect.getsource(pages[0].examples[0])
    page = run_show(capsys, name)
    assert written in page and "_Decay(" not in page and "_example(" not in page


@pytest.mark.parametrize(
    "name", ["attend", "generate", "fit", "check", "Attention", "Context", "load", "merge", "NoState"]
)
def test_the_public_functions_have_pages(capsys: pytest.CaptureFixture[str], name: str) -> None:
    out = run_show(capsys, name)
    assert f"kinformer.{name}" in out and f"from kinformer import {name}" in out and f"{name}(" in out
    assert "jaxtyping" not in out


def test_a_method_of_the_public_api(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "Context.of_sequence")
    assert "of_sequence(x, mask=None, source=None, source_mask=None)" in out and "Bool [B T]" in out
    assert "Context has no 'of_sequense'; the nearest" in refused(capsys, "Context.of_sequense")


def test_topics_lead_where_a_reader_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert "members/longformer" in (sparse := run_show(capsys, "sparse")) and "Strided(3)" in sparse
    halting = run_show(capsys, "halting", "--length", "5")
    assert "depth/act" in halting and "members/universal_transformer: number of steps that each token takes" in halting
    for words, place in (
        ("factorised", "patterns/strided"),
        ("linear attention", "members/linear_transformer"),
        ("memory", "memories/compressive"),
    ):
        topic = find_pages(words)
        assert isinstance(topic, Topic) and place in [entry.place for entry in topic.places]


def test_what_only_speaks_of_a_word_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "memories/compressive" in run_show(capsys, "Rae")


def test_a_missing_name_lists_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no part or member 'Bannd'; the nearest" in (err := refused(capsys, "Bannd")) and "'Band'" in err
    assert "ReversibleFunction" not in (err := refused(capsys, "nope")) and "slopes" not in err  # no helpers
    assert "Bnad in 'Causal() & Bnad(3)' is not a pattern; the nearest is 'Band'" in refused(
        capsys, "Causal() & Bnad(3)"
    )
    assert "has no keyword 'dept'; the nearest is 'depth'" in refused(capsys, "gpt", "dept=3")
    assert "wrong arguments in LSH(d=3): missing a required argument: 'heads'. Write LSH(heads, k_dim, " in refused(
        capsys, "lsh", "d=3"
    )
    assert "keywords such as 'd=3' with 'sparse': no part or member of this name takes keywords" in refused(
        capsys, "sparse", "d=3"
    )


def test_an_environment_shows_its_first_steps(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "t_maze", "corridor=5")
    assert "TMaze(corridor=30" in out and "kinformer train gtrxl --data env=t_maze" in out
    lines = [line.strip() for line in out.splitlines() if "....T" in line]
    assert lines[0] == "o....T" and len(lines) == 4 and "action" in lines[1] and "reward -0.1" in lines[1]
    assert "actions: Discrete(2)" in run_show(capsys, "masked_cartpole")


@pytest.mark.parametrize(
    "words",
    [
        ("band", "2", "0"),
        ("band(2, 0)",),
        ("Band", "2", "0"),
        ("band", "left=2", "right=0"),
        ("patterns/band", "2", "0"),
        ("band 2, 0",),
        ("'Band(2, 0)'",),
        ("Band(2, right=0)",),
    ],
)
def test_a_pattern_with_numbers_is_drawn_however_it_is_typed(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out = run_show(capsys, *words, "--length", "4")
    assert cells(out, "which keys each query reads")[:4] == ["██ · · ·", "████ · ·", "██████ ·", " ·██████"]


def test_a_call_of_a_part_is_shown_with_its_own_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "LSH(2, 8, 4, 2)", "--length", "4")
    assert "heads: int\n" in out and out.count("in round") == 3  # the caption, and a panel for each of the two rounds
    assert "Causal() &" in run_show(capsys, "Softmax(Causal() & Band(3))", "--length", "6")
    out = run_show(capsys, "Attention(QKV(16, 2), Softmax(Causal()))", "--length", "4")
    assert out.startswith("kinformer.Attention\n") and "\n2 ██████ ·\n3 ████████\n" in out
    wrong = {
        ("LSH(2, x)",): "'x' in 'LSH(2, x)' is not understood; write numbers, texts and parts",
        ("LSH(2)",): "wrong arguments in LSH(2): missing a required argument: 'k_dim'. Write LSH(heads, k_dim",
        ("band", "8", "9", "10"): "wrong arguments in Band(8, 9, 10): too many positional arguments. Write Band(left, ",
        ("Softmax(Foo())",): "Foo in 'Softmax(Foo())' is no part of the library",
        ("MLP(1000000)",): "cannot build MLP(1000000): ",
        ("gpt", "d=1000000"): "cannot build gpt d=1000000: ",
        ("band", "9" * 20): "cannot draw 'band 99999999999999999999': ",
        ("bannd", "8"): "there is no part or member 'bannd'; the nearest are 'Band'",
        (
            "gpt",
            "4",
        ): "the member 'gpt' takes keywords and no bare numbers; write for example `kinformer show gpt depth=4`",
    }
    for words, message in wrong.items():
        assert message in refused(capsys, *words)


def test_an_expression_names_its_patterns_and_trains(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "Causal() & Band(8)")
    assert "\n  band    Sliding window: " in out and "\n  causal  Causal attention: " in out
    assert "kinformer train gpt 'pattern=Causal() & Band(8)' --data text=stdlib" in out
    assert "kinformer train" not in run_show(capsys, "Band(8)")  # a decoder refuses it


def test_the_public_classes_list_their_methods(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "Attention")
    methods = out[out.index("\n  methods\n") :].splitlines()[2:]
    names = [line.split()[0] for line in methods[: methods.index("")] if not line.startswith("    ")]
    assert names[0] == "forward" and {"start", "forward"} <= set(names) and "extra_repr" not in names
    assert all(line.strip().partition("  ")[2] for line in methods[: methods.index("")] if not line.startswith("    "))
    assert "Define the computation performed at every call" not in out


def test_members_come_first_and_examples_are_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "transformer_xl", "--length", "64")
    assert out.startswith("Transformer-XL\n")  # its idea
    member, bias = (out.index(f"\n{place}\n") for place in ("members/transformer_xl", "biases/transformer_xl"))
    assert out.index("\nAnswers\n") < member < bias
    assert "\n  MLP(16)" in run_show(capsys, "mlp") and "MLP(16)" not in run_show(capsys, "GatedMLP")
    assert "check_token_positions" not in run_show(capsys, "tokens") and "slopes" in run_show(capsys, "alibi")


def test_a_pattern_that_reads_ahead_says_what_a_decoder_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert who_reads.AHEAD in " ".join(run_show(capsys, "fixed").split())
    for name in ("causal", "Causal() & Fixed(4, 1)", "bert"):
        assert who_reads.AHEAD not in " ".join(run_show(capsys, name).split())


def test_own_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = run_show(capsys, f"{TOY}:Alternate", "--length", "3")
    assert "Alternate()" in out and cells(out, "which keys each query reads")[:3] == ["██ · ·", " ·██ ·", "██ ·██"]
    assert cells(run_show(capsys, f"Causal() & {TOY}:Alternate()", "--length", "2"), "which keys each query reads")[
        :2
    ] == ["██ ·", " ·██"]
    assert "d: int = 8" in run_show(capsys, f"{MEMBERS}:bigram")
    assert "d: int = 8" in run_show(capsys, str(MEMBERS))
    assert "has no 'Alternat'; the nearest is 'Alternate'; it defines Alternate" in refused(capsys, f"{TOY}:Alternat")
    assert "has no 'Nothing'" in refused(capsys, f"{TOY}:Nothing() & Causal()")
    assert "there is no file or folder none.py" in refused(capsys, "none.py:f")
    (tmp_path / "empty.py").touch()
    assert "defines no public class or function" in refused(capsys, f"{tmp_path}/empty.py")
    (tmp_path / "my models").mkdir()
    own = shutil.copy(MEMBERS, tmp_path / "my models/two words.py")
    out = run_show(capsys, f"{own}:bigram")
    (command,) = (line.strip() for line in out.splitlines() if "kinformer train" in line)
    assert shlex.split(command)[:3] == ["kinformer", "train", f"{own}:bigram"]


def test_a_member_with_its_keywords(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("d=16", "heads=2", "depth=2", "window=3,9")
    out = run_show(capsys, "longformer", *words)
    assert "layer 0: near (Band(3) |" in out and "layer 1: near (Band(9) |" in out
    assert out == run_show(capsys, "longformer(d=16, heads=2, depth=2, window=(3, 9))")
    assert "window=3 has" not in out
    assert "window=(3, 9) has the wrong length: got 2, expected depth=4" in refused(capsys, "longformer", "window=3,9")


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
    parsed = doc(Told)
    assert parsed.first == "What it is, in one line." and parsed.equations == [
        "y = a x + b over all of it, on two lines."
    ]
    assert parsed.prose == ["Choose it to read this.", "    Told(1)"]
    assert parsed.arguments == {("a", "b"): "two numbers that stand together.", ("c",): "a third one."}
    assert (parsed.errors, parsed.source) == ("ValueError for a=0.", "Somebody, 2020, section 2.")
    assert heading("Told", Told) == "Told(a, b=1.0, *, c=None)"
    rows = list(arguments(Told, parsed))
    assert (
        rows[0] == ("a: int, b: float = 1.0", "two numbers that stand together.")
        and rows[1][0] == "c: Float [B T] | None = None"
    )


def test_no_page_of_a_window_promises_a_cost() -> None:
    for name in ("patterns/band", "patterns/block", "patterns/dilated", "members/longformer"):
        (page,) = [entry for entry in find_pages(name) if isinstance(entry, Page) and entry.heading.endswith(name)]
        text = " ".join(entry.__doc__ or "" for _, entry in page.main).lower()
        assert not any(word in text for word in ("linear cost", "same cost", "cheap", "faster", "long texts")), name


# Numbers of a pattern ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [STRIDED, "Band(3)", "Causal()", "Full()", "Strided(3)", "Causal() & Band(0)", "Band(1, 0) | Tokens(1)"]
)
def test_numbers_are_those_of_a_loop(text: str) -> None:
    length, pattern = 19, parse(text)
    read = [[bool(pattern(0, 0, q, k)) for k in range(length)] for q in range(length)]
    counts = count_pattern(pattern, length)
    keys = [sum(row) for row in read]
    assert (counts.least, counts.most) == (min(keys), max(keys))
    assert counts.mean == pytest.approx(sum(keys) / length) and counts.share == pytest.approx(sum(keys) / length**2)
    assert counts.ahead == any(read[q][k] for q in range(length) for k in range(q + 1, length))
    reached = [{q} for q in range(length)]
    layers = 0
    while (
        missing := [q for q in range(length) if len(reached[q]) < (length if counts.ahead else q + 1)]
    ) and layers < length:
        reached = [reached[q].union(*(reached[k] for k in range(length) if read[q][k])) for q in range(length)]
        layers += 1
    assert counts.steps == (None if missing else max(1, layers))


def test_an_expression_is_counted_and_drawn_in_labelled_pieces(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, STRIDED)
    read = parse(STRIDED).matrix(24)
    assert "counted on a row of 24 positions" in out
    assert f"keys per query   {read.sum() / 24:.4g} on average, from 1 to 10" in out
    parts = [float(number) for number in re.findall(r"(\S+) of the 7.833 keys: ", out)]
    assert len(parts) == 2 and sum(parts) == pytest.approx(7.833, abs=2e-3)  # the pieces make up the whole
    shares = re.search(r"(\S+)% of full attention at 1,024 tokens, (\S+)% at 4,096, (\S+)% at 16,384;", out)
    assert shares is not None
    first, second, third = map(float, shares.groups())
    assert 100 > first > second > third > 0  # sparser, the longer the row
    assert (
        f"{read.float().mean():.1%} of all pairs" in out
        and "after 2 layers, every position can reach all earlier positions" in out
    )
    assert "window (8 back, 0 ahead)" in out and "multiples of 8 (all back, 0 ahead)" in out
    (picture,) = who_reads.pictures(parse(STRIDED), None)
    (panel,) = picture.panels
    assert torch.equal(panel.kind > 0, read)
    at = torch.arange(24)
    near, residue = (layout.reads(at[:, None], at) for layout in (Near(8, 0), Residue(8, torch.inf, 0)))
    assert bool((near | (panel.kind != 1)).all()) and bool((residue | (panel.kind != 2)).all())


def test_reaching_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert "33.3% of all pairs, however many layers there are" in run_show(capsys, "Strided(3)")
    assert count_pattern(Strided(3), 24).reached == pytest.approx(1 / 3)


# Pictures ------------------------------------------------------------------------------------------------------------


def test_a_pattern_is_drawn_as_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_show(capsys, "Band(2, 0)", "--length", "4")
    assert cells(out, "which keys each query reads")[:4] == ["██ · · ·", "████ · ·", "██████ ·", " ·██████"]


def test_heads_and_layers_stand_side_by_side() -> None:
    (picture,) = who_reads.pictures(Heads(Causal(), Band(1)), 6)
    assert [panel.title for panel in picture.panels] == ["head 0: Causal()", "head 1: Band(1)"]
    assert torch.equal(picture.panels[1].kind > 0, Band(1).matrix(6))
    (page,) = find_pages("longformer", ("d=16", "heads=2", "depth=3", "window=2,2,6"))
    (picture,) = pictures(page, 16)
    assert [panel.title.partition(":")[0] for panel in picture.panels] == ["layers 0, 1", "layer 2"]
    whole = parse("Band(6) | Tokens(1) | Rows(1)").matrix(16)
    assert torch.equal(picture.panels[1].kind > 0, whole) and picture.kinds == ("near", "wide")
    assert torch.equal(picture.panels[1].kind == 2, parse("Rows(1)").matrix(16))


def test_more_positions_than_a_member_has_are_drawn_of_those_that_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "gpt", "d=8", "heads=2", "depth=1", "length=16", "--length", "64"]) == 0
    assert "64 positions" in capsys.readouterr().out


def test_every_member_is_drawn_or_has_no_pattern_to_draw() -> None:
    without = {"linear_transformer", "lstm", "performer", "rfa"}
    for name in members():
        usual = {key: parameter.default for key, parameter in signature(members()[name]).parameters.items()}
        needs = members()[name].needs  # type: ignore[attr-defined]
        sizes = {key: n for key, n in (("d", 16), ("heads", 2), ("depth", 1)) if key in usual}
        small = find_pages(name, tuple(f"{key}={n}" for key, n in sizes.items() if has_effect(key, needs, usual)))
        drawings = [drawing for page in small if page.heading == f"members/{name}" for drawing in pictures(page, 12)]
        assert all(isinstance(drawing, Picture) and drawing.panels for drawing in drawings)
        assert bool(drawings) != (name in without), name


def test_cost_is_measured_and_not_promised(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinformer.lab.cost.growth.LENGTHS", (16, 32))
    out = run_show(capsys, "causal", "--cost", "--length", "3")
    assert "  measured on this machine: Causal() & it\n  rows of 16 to 32 tokens, each twice as long, width 16" in out
    out = run_show(capsys, "gpt", "d=24", "heads=2", "depth=1", "--cost", "--length", "3")
    assert "rows of 16 to 32 tokens, each twice as long, width 24" in out and "\n  time " in out
    assert "measured" not in run_show(capsys, "causal", "--length", "3")


# Files ---------------------------------------------------------------------------------------------------------------


def test_the_same_pictures_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "lsh.png"
    assert f"the pictures are in {out}" in run_show(capsys, "lsh", "--length", "6", "--out", str(out))
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 5000
    assert "is not a picture; give a file that ends in .png, .svg or .pdf" in refused(
        capsys, "band", "--out", "band.txt"
    )
    assert "there is no file or folder" in refused(capsys, "band", "--out", f"{tmp_path}/none/band.png")
    missing = tmp_path / "none.png"
    assert (
        "'rms' has no picture. Leave out --out" in refused(capsys, "rms", "--out", str(missing))
        and not missing.exists()
    )


@pytest.mark.parametrize("words", ["'Causl() & Band(8)'", "topcs", "'~Bnd(3)'"])
def test_a_wrong_name_is_refused_before_torch_is_imported(words: str) -> None:
    """Without torch a refusal takes half a second, and with it several seconds."""
    assert not {"torch", "numpy", "matplotlib"} & imported(f"show {words}", 2)


def test_a_page_imports_only_its_files() -> None:
    modules_of_page = imported("show causal")
    assert "kinformer.core.patterns.causal" in modules_of_page
    assert "matplotlib" not in modules_of_page
    assert not {"kinformer.members.reformer", "kinformer.lab.tasks.listops", "kinformer.nn.mechanisms.lsh"} & (
        modules_of_page
    )


def imported(words: str, status: int = 0) -> set[str]:
    """Return the modules that a command imports in a process of its own."""
    code = (
        "import contextlib, io, shlex, sys\nfrom kinformer.cli.__main__ import run\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    assert run(shlex.split({words!r})) == {status}\n"
        "print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_misspelled_lists_are_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert "; the nearest are 'topics', " in refused(capsys, "topcs")
    assert "'commands'" in refused(capsys, "comands")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Causl() & Band(8)", "Causl in 'Causl() & Band(8)' is not a pattern; the nearest is 'Causal'"),
        ("~(Band(2) | Cusal())", "Cusal in '~(Band(2) | Cusal())' is not a pattern; the nearest is 'Causal'"),
        ("Causal() &", "pattern 'Causal() &' does not parse: invalid syntax"),
    ],
)
def test_a_wrong_pattern_is_named(text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in refused(capsys, text)
