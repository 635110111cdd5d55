"""Every task against a solver written from its definition, which sees what stands before an answer and nothing else."""

import re
import statistics
from collections.abc import Callable

import numpy
import pytest

from kinformer.core.discover import examples, modules
from kinformer.core.task import Task
from kinformer.lab.tasks.mqar import Mqar

ROWS, GUESSED = 100, 1500
VARYING = ("listops", "mqar")  # rows of several lengths
Solver = Callable[[str], str]


def copy(before: str) -> str:
    word, *rest = before.split("|")
    assert re.fullmatch(r"[a-zA-Z]+\.*", word) and rest == [""]
    return word.rstrip(".")


def reverse(before: str) -> str:
    return "".join(reversed(copy(before)))


def sorting(before: str) -> str:
    word = copy(before)
    return "".join(sorted(filter(str.islower, word)) + sorted(filter(str.isupper, word)))


def recall(before: str) -> str:
    items, question = before.split("|")
    pairs = dict(zip(items[::2], items[1::2], strict=True))
    assert len(pairs) == len(items) // 2
    return pairs[question[-1]]


def mqar(before: str) -> str:
    """The symbol after the first occurrence of the key, in a row that is pairs and then dots and queries."""
    query, listed = before[-1], before.replace(".", "")
    assert listed.index(query) % 2 == 0 and not query.isdigit()
    assert before.index(query) == listed.index(query), "a dot stands among the pairs"
    return before[before.index(query) + 1]


def in_context_recall(before: str) -> str:
    pairs = re.findall(r"([a-zA-Z])(\d)", before)
    values = {value for key, value in pairs if key == before[-1]}
    assert "".join(map("".join, pairs)) + before[-1] == before and len(values) == 1
    return values.pop()


def noisy_in_context_recall(before: str) -> str:
    assert all(len(noise) % 2 == 0 for noise in re.findall(r"[^a-zA-Z0-9]+", before))
    return in_context_recall(re.sub(r"[^a-zA-Z0-9]", "", before))


def fuzzy_in_context_recall(before: str) -> str:
    asked = re.search(r"[a-zA-Z]+$", before)
    assert asked and len(set(asked[0])) == len(asked[0])
    values = set(re.findall(rf"(?<![a-zA-Z]){asked[0]}(\d+)", before))
    assert len(values) == 1, before
    return str(values.pop())


def selective_copying(before: str) -> str:
    return "".join(re.findall(r"[a-zA-Z]", before.removesuffix("|")))


def sequence_compression(before: str) -> str:
    sequence, queries = before.split("|", 1)
    assert "".join(sequence["abcdefghijklmnopqrstuvwxyz".index(key)] for key in queries[:-1:2]) == queries[1::2]
    assert len(set(queries[::2])) == len(queries[::2])
    return sequence["abcdefghijklmnopqrstuvwxyz".index(queries[-1])]


def memorization(before: str, known: dict[str, str]) -> str:
    """What the key had in other rows, which `known` collects."""
    *answered, (key, value) = re.findall(r"([a-zA-Z]+)\?(\d?)", before)
    assert not value and key not in dict(answered) and all(value for _, value in answered)
    return known[key]


def induction(before: str) -> str:
    assert before.count(">") == 2 and before.endswith(">")
    return before[before.index(">") + 1]


def needle(before: str) -> str:
    keys = re.findall(r"key=(\d+) ", before)
    assert len(keys) == 1 and before.endswith("key=")
    return str(keys[0])


def parity(before: str) -> str:
    odd = False
    for bit in before.removesuffix("="):
        odd ^= {"0": False, "1": True}[bit]
    return str(int(odd))


def addition(before: str, backwards: bool) -> str:
    first, other = before.removesuffix("=").split("+")
    digits, carry = [], 0
    for a, b in zip(reversed(first), reversed(other), strict=True):
        carry, digit = divmod(int(a) + int(b) + carry, 10)
        digits.append(str(digit))
    digits.append(str(carry))
    return "".join(digits if backwards else reversed(digits))


def listops(before: str) -> str:
    """Innermost lists are replaced by their value until a digit is left."""
    of = {
        "MIN": min,
        "MAX": max,
        "MED": lambda values: int(statistics.median(values)),
        "SM": lambda values: sum(values) % 10,
    }
    text = before.removesuffix("=")
    while not text.isdigit():
        text, count = re.subn(r"\[([A-Z]+)(\d{2,})\]", lambda m: str(of[m[1]]([int(d) for d in m[2]])), text)
        assert count, f"no list of at least two digits in {text}"
    assert len(text) == 1
    return text


def half_easy(before: str, hops: int) -> str:
    letters = copy(before)
    leads = {"abcdefghijklmnopqrstuvwxyz"[n]: letter for n, letter in enumerate(letters)}
    result = ""
    for letter in leads:
        for _ in range(hops):
            letter = leads[letter]  # noqa: PLW2901
        result += f"{letter}{letter.upper()}"
    return result


def solver(name: str, task: Task) -> Solver:
    """What answers a task, by the name of its file."""
    if name == "addition":
        return lambda before: addition(before, task.backwards)  # type: ignore[attr-defined]
    if name == "half_easy":
        return lambda before: half_easy(before, task.hops)  # type: ignore[attr-defined]
    if name == "memorization":
        rng, known = numpy.random.default_rng(9), {}
        for _ in range(ROWS * 10):
            known.update(re.findall(r"([a-zA-Z]+)\?(\d)", task.row(rng).text.decode()))
        assert len(known) == task.entries  # type: ignore[attr-defined]
        return lambda before: memorization(before, known)
    if name == "copy_at_distance":
        # a symbol at a time, each the one so far before it
        distance = task.distance  # type: ignore[attr-defined]

        def at_distance(before: str) -> str:
            for _ in range(distance):
                before += before[-distance]
            return before[-distance:]

        return at_distance
    return globals()[name]


TASKS = [pytest.param(name, example.make(), id=f"{name}-{n}") for n, (name, example) in enumerate(examples("tasks"))]


def test_every_task_is_solved_here() -> None:
    assert {param.values[0] for param in TASKS} == set(modules("tasks"))


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_every_answer_is_what_the_definition_says(name: str, task: Task) -> None:
    rng, solve, lengths = numpy.random.default_rng(1), solver(name, task), set()
    for _ in range(ROWS):
        row, before = task.row(rng), ""
        for question, answer in row.pieces:
            before += question.decode("ascii")
            assert solve(before) == answer.decode("ascii"), before
            before += answer.decode("ascii")
        assert row.text.decode() == before and before.isprintable()
        assert bytes(c for c, mark in zip(row.text, row.answer_mask, strict=True) if mark) == row.answer
        lengths.add(len(row.text))
    assert max(lengths) <= task.width and (name in VARYING or lengths == {task.width})


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_guessing_scores_what_is_said(name: str, task: Task) -> None:
    """The likeliest symbol at each place, found on some rows, tried on others."""
    rng = numpy.random.default_rng(2)
    samples, tested = (numpy.array([list(task.row(rng).answer) for _ in range(GUESSED)]) for _ in range(2))
    guess = [numpy.bincount(place).argmax() for place in samples.T]
    assert (tested == guess).mean() == pytest.approx(task.chance_accuracy, abs=0.04)
    documented = re.search(r"Guessing\s+scores(.*?)(?:\.\s|$)", type(task).__doc__ or "", re.DOTALL)
    assert documented, f"{name} must say what guessing scores"
    if task == type(task)():
        assert float(re.findall(r"0\.\d+", documented[1])[-1]) == pytest.approx(task.chance_accuracy, abs=0.01)


@pytest.mark.parametrize("name", ["in_context_recall", "noisy_in_context_recall", "fuzzy_in_context_recall"])
def test_a_random_value_of_the_row_scores_what_is_said(name: str) -> None:
    kind = type(next(param.values[1] for param in TASKS if param.values[0] == name))
    documented = re.findall(r"0\.\d+", str(kind.__doc__).partition("ignores keys")[2].partition("\n\n")[0])
    arena = {"keys": 2, "times": 4, "longest": 2} if name.startswith("fuzzy") else {"pairs": 8, "keys": 2}
    assert len(documented) == 2
    for task, score in zip((kind(), kind(**arena)), documented, strict=True):
        rng, hits, symbols = numpy.random.default_rng(3), 0, 0
        for _ in range(1000):
            before = b""
            for question, answer in task.row(rng).pieces:
                before += question
                value = rng.choice(sorted(set(re.findall(rb"\d+", before))))
                hits += sum(guess == symbol for guess, symbol in zip(value, answer, strict=False))
                symbols += len(answer)
                before += answer
        assert hits / symbols == pytest.approx(float(score), abs=0.02)


def test_a_key_of_mqar_is_queried_at_most_once_also_with_fewer_queries_than_pairs() -> None:
    rng, counts = numpy.random.default_rng(4), set[int]()
    for _ in range(200):
        pieces = Mqar(6, 4, length=40, keys=8).row(rng).pieces
        queried = [question[-1:] for question, _ in pieces]
        counts.add(len(set(queried)))
        assert len(queried) == 4
    assert counts == {4}


@pytest.mark.parametrize(("name", "task"), TASKS)
def test_rows_follow_the_seed(name: str, task: Task) -> None:
    def draw(seed: int) -> list[bytes]:
        rng = numpy.random.default_rng(seed)
        return [task.row(rng).text for _ in range(8)]

    assert draw(5) == draw(5) != draw(6)


def test_copies_are_at_the_distance_and_needles_at_their_depth() -> None:
    from kinformer.lab.tasks.needle import Needle

    for depth in (0.0, 0.5, 1.0):
        rng = numpy.random.default_rng(0)
        places = [Needle(200, 3, depth).row(rng).question.index(b"key=") for _ in range(50)]
        hay_length = 200 - 2 * 7 - 1
        assert max(abs(place - depth * hay_length) for place in places) <= 8
    spread = [Needle(200, 3).row(numpy.random.default_rng(n)).question.index(b"key=") for n in range(200)]
    assert min(spread) < 20 and max(spread) > 160


def test_lists_are_nested_as_published() -> None:
    """One argument in four is a list where the depth allows, of 2 to `arguments` arguments, each operator as likely."""
    from kinformer.lab.tasks.listops import Listops

    # at most two levels, and no length that would be drawn again: what is drawn is what comes
    task, rng = Listops(6, 10_000, arguments=4, deepest=3), numpy.random.default_rng(0)
    texts = [task.row(rng).question.decode() for _ in range(2000)]
    inner = [text[1:-2] for text in texts]
    outer = [re.sub(r"\[[A-Z]+\d+\]", "L", text) for text in inner]
    arguments = [re.sub(r"^(MIN|MAX|MED|SM)", "", text) for text in outer]
    counts = numpy.bincount([len(values) for values in arguments], minlength=5)[2:] / 2000
    assert counts == pytest.approx([1 / 3] * 3, abs=0.04)
    letters = "".join(arguments)
    assert letters.count("L") / len(letters) == pytest.approx(0.25, abs=0.02)
    names = [re.match(r"MIN|MAX|MED|SM", text)[0] for text in inner]  # type: ignore[index]
    assert [names.count(name) / 2000 for name in ("MIN", "MAX", "MED", "SM")] == pytest.approx([0.25] * 4, abs=0.04)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("copy", {"length": 0}),
        ("copy", {"gap": -1}),
        ("copy_at_distance", {"distance": 0}),
        ("reverse", {"symbols": 53}),
        ("recall", {"pairs": 4, "queries": 5}),
        ("induction", {"length": 0}),
        ("needle", {"length": 16}),
        ("needle", {"depth": 1.5}),
        ("parity", {"length": 0}),
        ("addition", {"digits": 19}),
        ("sorting", {"symbols": 1}),
        ("mqar", {"pairs": 65}),
        ("mqar", {"keys": 65}),
        ("mqar", {"keys": 0}),
        ("mqar", {"queries": 0}),
        ("mqar", {"power": 1.5}),
        ("mqar", {"pairs": 8, "length": 31}),
        ("mqar", {"pairs": 4, "queries": 5}),
        ("mqar", {"values": 30}),
        ("mqar", {"power": -0.5}),
        ("in_context_recall", {"pairs": 8, "keys": 8}),
        ("in_context_recall", {"pairs": 99, "keys": 53}),
        ("in_context_recall", {"values": 1}),
        ("in_context_recall", {"values": 11}),
        ("noisy_in_context_recall", {"noise": 1.0}),
        ("noisy_in_context_recall", {"noise": 0.01}),
        ("noisy_in_context_recall", {"values": 11}),
        ("fuzzy_in_context_recall", {"times": 1}),
        ("fuzzy_in_context_recall", {"longest": 9}),
        ("fuzzy_in_context_recall", {"keys": 25}),
        ("fuzzy_in_context_recall", {"keys": 0}),
        ("fuzzy_in_context_recall", {"letters": 53}),
        ("fuzzy_in_context_recall", {"digits": 11}),
        ("fuzzy_in_context_recall", {"digits": 1}),
        ("selective_copying", {"dots": -1}),
        ("sequence_compression", {"length": 65}),
        ("sequence_compression", {"symbols": 1}),
        ("sequence_compression", {"symbols": 30}),
        ("memorization", {"queries": 33}),
        ("memorization", {"queries": 1}),
        ("memorization", {"entries": 53}),
        ("memorization", {"key_length": 0}),
        ("memorization", {"key_length": 4}),
        ("memorization", {"values": 1}),
        ("memorization", {"values": 11}),
        ("memorization", {"dictionary": -1}),
        ("listops", {"arguments": 1}),
        ("listops", {"shortest": 30, "longest": 20}),
    ],
)
def test_sizes_without_a_meaning_are_refused(name: str, sizes: dict[str, float]) -> None:
    kind = type(next(param.values[1] for param in TASKS if param.values[0] == name))
    with pytest.raises(ValueError, match=r"^[a-z_]+=\S+: give a") as caught:
        kind(**sizes)
    assert str(caught.value).partition("=")[0] in sizes
    assert "\n" not in str(caught.value)
