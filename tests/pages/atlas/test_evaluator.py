"""The evaluator of patterns in the atlas gives what Python gives, in a real browser."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kinformer.core.discover import modules
from kinformer.core.pattern import Heads, Pattern, pair_mask
from kinformer.core.pattern_parser import parse
from kinformer.lab.cost.sparsity import count_pattern
from kinformer.pages.atlas.write_atlas import SCRIPTS, SITE
from tests.pages.atlas.random_expressions import INVALID, JOINED, LEAVES, VALID, expressions

COUNT, SEED = 200, 39
HEADS = 3
EVALUATE = """([text, length, heads]) => {
  const pattern = Atlas.parsePattern(text);
  return heads.map((h) => Array.from(Atlas.matrix(pattern, length, h)).join(""));
}"""
REFUSAL = """(text) => {
  try { Atlas.parsePattern(text); return null } catch (error) {
    if (error instanceof Atlas.PatternError) return error.message;
    throw error;
  }
}"""


@pytest.fixture(scope="module")
def page(browser: Any) -> Iterator[Any]:
    """A page with the scripts of the evaluator alone."""
    page = browser.new_page()
    for name in SCRIPTS:
        if name.startswith(("pattern", "random", "span")):
            page.add_script_tag(path=SITE / name)
    yield page
    page.close()


def bits(pattern: Pattern, length: int, h: int) -> str:
    return "".join(map(str, pattern.matrix(length, h=h).flatten().int().tolist()))


def test_the_expressions_cover_every_pattern_and_operator() -> None:
    texts = expressions(COUNT, SEED)
    assert len(set(texts)) > 0.9 * COUNT
    for name in (*LEAVES, *JOINED):
        assert sum(name in text for text in texts) >= 3, name
    dense = [float(parse(text).matrix(32).float().mean()) for text in texts]
    assert sum(0.02 < share < 0.98 for share in dense) > COUNT / 2  # most say something


def test_every_pattern_that_can_be_written_is_evaluated(page: Any) -> None:
    """The page has the names, arguments and defaults of the classes."""
    classes: dict[str, Any] = {"Heads": Heads}
    for module in modules("patterns").values():
        own = {name: value for name, value in vars(module).items() if inspect.isclass(value)}
        classes |= {name: value for name, value in own.items() if value.__module__ == module.__name__}
    classes = {name: value for name, value in classes.items() if issubclass(value, Pattern) and name[0] != "_"}
    with_tensor = {
        name for name, cls in classes.items() if any("Tensor" in str(x) for x in cls.__annotations__.values())
    }
    assert set(page.evaluate("[...Atlas.NEEDS_TENSOR]")) == with_tensor
    fields = page.evaluate(
        "Object.fromEntries(Object.entries(Atlas.PATTERNS).map(([name, { fields }]) => [name, Object.entries(fields)"
        ".map(([key, value]) => [key, value === Atlas.REQUIRED ? 'required' : typeof value === 'function' ? "
        "Atlas.spell(value()) : Atlas.spell(value)])]))"
    )
    assert fields.keys() == classes.keys() - with_tensor == {*LEAVES, "Heads", "Pieces", "Shifted"}
    for name, cls in classes.items():
        if name in fields and name != "Heads":
            parameters = inspect.signature(cls).parameters.values()
            expected = [[x.name, "required" if x.default is x.empty else str(x.default)] for x in parameters]
            assert fields[name] == expected, name


@pytest.mark.parametrize("part", range(4))
def test_random_expressions_have_the_matrices_of_python(page: Any, part: int) -> None:
    texts = expressions(COUNT, SEED)
    generator = torch.Generator().manual_seed(SEED)
    lengths = torch.randint(24, 65, (COUNT,), generator=generator).tolist()
    for n in range(part, COUNT, 4):
        text, length, heads = texts[n], lengths[n], [0, 1, 2 + n % HEADS]
        pattern = parse(text)
        expected = [bits(pattern, length, h) for h in heads]
        assert page.evaluate(EVALUATE, [text, length, heads]) == expected, text


@pytest.mark.parametrize("text", VALID)
def test_spellings_of_python_are_read(page: Any, text: str) -> None:
    assert page.evaluate(EVALUATE, [text, 24, [0, 1]]) == [bits(parse(text), 24, h) for h in (0, 1)]


@pytest.mark.parametrize("text", INVALID)
def test_both_refuse_an_invalid_expression(page: Any, text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)
    message = page.evaluate(REFUSAL, text)
    assert message and re.search(r"\w", message), text


def test_an_unknown_name_is_named_before_anything_else(page: Any) -> None:
    for text in ("Causal( & Bnad(2)", "Bnad(1, 2, 3", "Block(0) | Bnad()", "Causal() Bnad", "Bnad(("):
        assert page.evaluate(REFUSAL, text) == "there is no pattern Bnad; the nearest is 'Band'", text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Causal() & (Band(4)", "a closing bracket is missing at the end"),
        ("Band(3))", "a closing bracket has no opening bracket"),
        ("Causal() &", "a pattern is missing after '&'"),
        ("Causal() Band(3)", "& or | is missing before 'Band'"),
        ("Band", "Band needs brackets: write Band(left, right)"),
        ("Causal() and Band(3)", "write & instead of 'and'"),
        ("Causal() && Band(3)", "write '&' once"),
        ("", "the expression is empty"),
    ],
)
def test_a_refusal_says_what_is_wrong(page: Any, text: str, message: str) -> None:
    assert page.evaluate(REFUSAL, text).startswith(message)


def test_a_refusal_names_the_nearest_pattern_and_the_arguments(page: Any) -> None:
    for text in ("Bnad(3)", "Stridde(4)", "band(2)", "Token(1)"):
        with pytest.raises(ValueError) as refusal:
            parse(text)
        name = re.search(r"the nearest is '(\w+)'", str(refusal.value))
        assert name and f"the nearest is '{name[1]}'" in page.evaluate(REFUSAL, text)
    assert "Write Band(left, right)" in page.evaluate(REFUSAL, "Band(1, 2, 3)")
    assert "Block.size=0: give a whole number of at least 1" in page.evaluate(REFUSAL, "Block(0)")


def test_long_rows_have_the_matrices_of_python(page: Any) -> None:
    """Trees grow new levels, and random blocks have more to choose from."""
    for text in ("Tree(2)", "Random(3, 4, symmetric=True)", "Random(2)", "PublishedRandom(3, 8)", "TreeLevel(3, 4)"):
        assert page.evaluate(EVALUATE, [text, 700, [1]]) == [bits(parse(text), 700, 1)], text


def test_the_numbers_are_those_of_show(page: Any) -> None:
    texts = [text for text in expressions(COUNT, SEED + 1) if "Blocks" not in text][:40]
    texts += ["Causal() & Band(5)", "Causal()", "Full()", "~Full()", "Strided(3)", "Causal() & (Band(5) | Strided(6))"]
    for text in texts:
        counted = page.evaluate("([text, length]) => Atlas.countPattern(Atlas.parsePattern(text), length)", [text, 40])
        expected = count_pattern(parse(text), 40)._asdict()
        assert {**counted, "share": 0, "mean": 0, "reached": 0} == {**expected, "share": 0, "mean": 0, "reached": 0}, (
            text
        )
        for name in ("share", "mean", "reached"):
            assert counted[name] == pytest.approx(expected[name], rel=1e-5), (text, name)


LONG = 16_384
COUNT_LONG = """([text, length]) => new Promise((end) => Atlas.countLongRow(
  Atlas.parsePattern(text), length, () => {}, (keys, queries) => end([keys, queries])))"""


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("Causal()", (LONG + 1) / 2),
        ("Causal() & Band(7)", 8 - 28 / LONG),
        # a window of 5, and the positions at a distance of 8, 16, ...
        ("Causal() & (Band(4) | Strided(8))", sum(min(q, 4) + 1 + q // 8 for q in range(LONG)) / LONG),
        ("Heads(Causal(), Band(0))", ((LONG + 1) / 2 + 1) / 2),
        ("OnHeads(0, 4)", LONG / 4),
        ("~Causal() & ~Tokens(3)", sum(LONG - max(q + 1, 3) for q in range(LONG)) / LONG),
    ],
)
def test_a_long_row_is_counted_exactly(page: Any, text: str, keys: float) -> None:
    counted, queries = page.evaluate(COUNT_LONG, [text, LONG])
    assert queries == LONG
    assert counted == pytest.approx(keys, rel=1e-12)


def test_a_slow_pattern_is_counted_in_the_same_sample_each_time(page: Any) -> None:
    first, queries = page.evaluate(COUNT_LONG, ["Tree(2)", LONG])
    assert queries == 1024
    assert page.evaluate(COUNT_LONG, ["Tree(2)", LONG]) == [first, queries]
    places = page.evaluate("(length) => Atlas.queriesToCount(Atlas.parsePattern('Tree(2)'), length, 1)", LONG)
    assert [place // 16 for place in places] == list(range(1024))  # one query of each part of the row
    assert len({place % 16 for place in places}) == 16  # and no regular step
    q, k = torch.tensor(places)[None, None], torch.arange(LONG)[None, None]
    assert first == int(pair_mask(parse("Tree(2)"), q, k, range(1)).sum()) / 1024


def test_a_pattern_is_known_to_differ_by_head(page: Any) -> None:
    """Only one head is counted in a long row if the heads are equal."""
    differs = "([text, length]) => Atlas.headMatrices(Atlas.parsePattern(text), length).map((x) => x.join())"
    for text in expressions(COUNT, SEED):
        heads = page.evaluate(differs, [text, 40])
        assert len(set(heads)) == 1 or page.evaluate("(text) => Atlas.parsePattern(text).byHead", text), text


def test_a_pattern_that_reaches_only_part_of_the_row_never_connects(page: Any) -> None:
    connect = "([text, length]) => Atlas.countPattern(Atlas.parsePattern(text), length).steps"
    assert page.evaluate(connect, ["Causal() & Block(4)", 16]) is None
    assert page.evaluate(connect, ["Causal() & Band(4)", 17]) == 4
    layers = "(text) => Atlas.layersToQuery(Atlas.headMatrices(Atlas.parsePattern(text), 10), 10, 9)"
    assert page.evaluate(layers, "Causal() & Band(3)") == [3, 3, 3, 2, 2, 2, 1, 1, 1, 0]
    assert page.evaluate(layers, "Band(1, -1)") == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert page.evaluate(layers, "Block(5)") == [None] * 5 + [1] * 4 + [0]
