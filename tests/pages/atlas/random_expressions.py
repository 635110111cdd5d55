"""Random expressions of patterns: every pattern that can be written as text, joined by & | ~ and Heads."""

import random
from collections.abc import Callable


def some(rng: random.Random, *choices: Callable[[], str]) -> str:
    return rng.choice(choices)()


def positions(rng: random.Random, most: int) -> str:
    """A number of positions, or a tuple of positions."""
    if rng.random() < 0.5:
        return str(rng.randint(0, 4))
    return spelled(rng.sample(range(most), rng.randint(0, 4)))


def spelled(numbers: list[int]) -> str:
    return f"({', '.join(map(str, numbers))}{',' * (len(numbers) == 1)})"


def band(rng: random.Random) -> str:
    left = rng.randint(-4, 9)
    return rng.choice(
        [f"Band({abs(left)})", f"Band({left}, right={-left + rng.randint(0, 9)})", f"Band(left={abs(left)})"]
    )


def block(rng: random.Random) -> str:
    back = rng.randint(-2, 2)
    return f"Block({rng.randint(1, 9)}, {back}, {-back + rng.randint(0, 2)})"


def blocks(rng: random.Random) -> str:
    table = ", ".join(spelled([rng.randint(0, 7) for _ in range(rng.randint(0, 3))]) for _ in range(rng.randint(2, 7)))
    return f"Blocks(({table}), size={rng.randint(1, 6)})"


def blockwise(rng: random.Random) -> str:
    numbers = list(range(rng.randint(1, 6)))
    rng.shuffle(numbers)
    return f"Blockwise({spelled(numbers)}, {rng.randint(1, 9)})"


def axial(rng: random.Random) -> str:
    shape = [rng.randint(1, 6) for _ in range(rng.randint(1, 3))]
    return f"Axial({spelled(shape)}, {rng.randrange(len(shape))})"


def columns(rng: random.Random, name: str) -> str:
    size = rng.randint(2, 12)
    summary = rng.randint(1, size)
    return f"{name}({size}, {summary}, {rng.randint(0, size - summary)})"


def picture(rng: random.Random) -> tuple[int, str]:
    """A width and a block that divides it."""
    wide = rng.randint(1, 4)
    return wide * rng.randint(1, 4), f"({rng.randint(1, 4)}, {wide})"


def grid(rng: random.Random) -> str:
    width, shape = picture(rng)
    around = f"{width}, {rng.randint(0, 3)}, {rng.randint(0, 3)}"
    return rng.choice([f"Grid({around})", f"Grid({around}, block={shape})"])


def image_2d(rng: random.Random) -> str:
    width, shape = picture(rng)
    return f"Image2D({width}, {shape}, ({rng.randint(0, 3)}, {rng.randint(0, 3)}))"


def random_blocks(rng: random.Random) -> str:
    head = rng.choice(["None", str(rng.randint(0, 3))])
    return (
        f"Random({rng.randint(1, 5)}, {rng.randint(1, 5)}, seed={rng.randint(-(10**6), 10**9)}, "
        f"symmetric={rng.choice(['True', 'False'])}, first={rng.randint(0, 3)}, back={rng.randint(0, 3)}, head={head})"
    )


def published_random(rng: random.Random) -> str:
    first = rng.randint(0, 3)
    among = first + rng.randint(1, 20)
    return (
        f"PublishedRandom({rng.randint(1, 5)}, {rng.randint(1, 5)}, {rng.randint(-9, 99)}, among={among}, "
        f"first={first}, window={rng.randint(0, 3)}, head={rng.choice(['None', '1'])})"
    )


def on_heads(rng: random.Random) -> str:
    of = rng.randint(1, 4)
    return f"OnHeads({rng.randrange(of)}, {of})"


def tree_level(rng: random.Random) -> str:
    return f"TreeLevel({rng.randint(1, 4)}, {rng.randint(0, 3)}, causal={rng.choice(['True', 'False'])})"


LEAVES: dict[str, Callable[[random.Random], str]] = {
    "Axial": axial,
    "Band": band,
    "Block": block,
    "Blocks": blocks,
    "Blockwise": blockwise,
    "Causal": lambda rng: "Causal()",
    "Columns": lambda rng: columns(rng, "Columns"),
    "Dilated": lambda rng: f"Dilated({rng.randint(0, 6)}, {rng.randint(1, 6)})",
    "Fixed": lambda rng: columns(rng, "Fixed"),
    "Full": lambda rng: "Full()",
    "Grid": grid,
    "Image1D": lambda rng: f"Image1D({rng.randint(1, 9)}, {rng.randint(0, 12)})",
    "Image2D": image_2d,
    "OnHeads": on_heads,
    "Prefix": lambda rng: f"Prefix({rng.randint(0, 9)})",
    "PublishedRandom": published_random,
    "Random": random_blocks,
    "Rows": lambda rng: f"Rows({positions(rng, 24)})",
    "Segment": lambda rng: f"Segment({rng.randint(1, 9)}, memory={rng.randint(0, 12)})",
    "Star": lambda rng: rng.choice(["Star()", f"Star({rng.randint(1, 30)})"]),
    "Strided": lambda rng: f"Strided({rng.randint(1, 9)})",
    "Tokens": lambda rng: f"Tokens({positions(rng, 24)})",
    "Tree": lambda rng: f"Tree({rng.randint(1, 5)})",
    "TreeLevel": tree_level,
}
JOINED = ("&", "|", "~", "Heads", "Pieces", "Shifted")  # what is made of other patterns


def expression(rng: random.Random, depth: int, first: str = "") -> str:
    """A random expression; its outermost part is `first` if that is given."""
    kind = first or (rng.choice([*JOINED, "&", "|", "leaf"]) if depth else "leaf")
    if kind == "leaf":
        kind = rng.choice(list(LEAVES))
    if kind in LEAVES:
        return LEAVES[kind](rng)
    inner = [expression(rng, max(depth - 1, 0)) for _ in range(4)]
    if kind in ("&", "|"):
        return f"({inner[0]} {kind} {inner[1]})" if rng.random() < 0.5 else f"{inner[0]} {kind} {inner[1]}"
    if kind == "~":
        return f"~({inner[0]})"
    if kind == "Heads":
        return f"Heads({', '.join(inner[: rng.randint(1, 4)])})"
    if kind == "Shifted":
        return f"Shifted({inner[0]}, {rng.randint(0, 9)})"
    named = [f"{piece}={text}" for piece, text in zip(("g2g", "g2l", "l2g", "l2l"), inner, strict=True)]
    return f"Pieces({rng.randint(0, 5)}, {', '.join(rng.sample(named, rng.randint(0, 4)))})"


def expressions(count: int, seed: int) -> list[str]:
    """Random expressions; every pattern and every operator is the outermost part of some."""
    rng = random.Random(seed)
    kinds = [*LEAVES, *JOINED]
    return [expression(rng, rng.randint(0, 3), kinds[n] if n < len(kinds) else "") for n in range(count)]


INVALID = (
    *("", "Band", "Causal", "Bandd(3)", "Causal() & 3", "~5", "5", "None", "Band(3", "Band 3", "Band(3))", "()"),
    *("Band(3) and Causal()", "Band(3) + Causal()", "not Causal()", "Causal() &", "& Causal()", "Band(1.5)"),
    *("Band('3')", "Band()", "Band(1, 2, 3)", "Band(size=3)", "Band(right=1)", "Band(3, left=2)", "Band(True)"),
    *("Band(left=1, 2)", "Band(-3)", "Band(1, -3)", "Block(0)", "Block(4, 1, -2)", "Block(4, None)", "Strided(0)"),
    *("Fixed(4, 5)", "Fixed(4, 2, 3)", "Columns(4, 0)", "Columns(4, 3, 2)", "Segment(0, 3)", "Segment(3)"),
    *("Segment(3, -1)", "Tokens(-1)", "Tokens((1, -2))", "Tokens(None)", "Tokens((1, True))", "Rows()"),
    *("Prefix((1, 2))", "Star(0)", "Blocks(3)", "Blocks((1, 2))", "Blocks(((1,), (-1,)))", "Blockwise((0, 2), 4)"),
    *("Blockwise(3, 4)", "Blockwise((0,))", "Axial((), 0)", "Axial((3, 4), 2)", "Axial((3, 0), 1)", "Axial(3, 0)"),
    *("Grid(5, 1, 1, (1, 2))", "Grid(4, -1, 0)", "Grid(4, 1, 1, (2,))", "Grid(4, 1, 1, 2)", "Image2D(6, (2, 3), 1)"),
    *("Image2D(6, (2, 4), (1, 1))", "Image1D(0, 1)", "Image1D(3, -1)", "Random(0)", "Random(1, 0)"),
    *("Random(1, symmetric=1)", "Random(1, head=-1)", "Random(1, seed=None)", "PublishedRandom(1, among=1)"),
    *("PublishedRandom(0)", "OnHeads(2, 2)", "OnHeads(0, 0)", "Tree(0)", "Tree()", "TreeLevel(1, -1)"),
    *("TreeLevel(1, 0, 1)", "Heads()", "Heads(3)", "Heads(Causal(), None)", "Heads(causal=Causal())"),
    *("Heads(patterns=())", "Shifted(Causal(), -1)", "Shifted(3, 1)", "Shifted(Causal())", "Pieces()", "Pieces(-1)"),
    *("Pieces(1, Causal(), Causal(), Causal(), 3)", "Pieces(1, g2x=Causal())", "Document(3)", "Tail(1)"),
    *("PairMask(1)", "Band(3); Causal()", "Causal().matrix(3)", "Band(3)[0]", "lambda: Causal()"),
    *("Causal(), Band(3)", "x = Causal()", "Band(01)", "Band(3)\n| Causal()", "Causal() ^ Band(3)"),
    *("toString", "toString()", "constructor()", "__proto__(3)", "hasOwnProperty", "SlidingWindow(4)"),
    *("Causal() && Band(3)", "Causal() || Band(3)", "~", "-Band(3)"),
)
VALID = (  # spellings of Python that the page must read too
    *("Band(1_0)", "Band(0x1f)", "Band(0b11)", "Band(0o7)", "Band( 3 ,)", "Tokens(())", "Tokens((3,))", "~~Causal()"),
    *("Causal() | Band(1) & Strided(2)", "~Causal() & Band(2)", "((Causal()))"),
    *("Heads(patterns=(Causal(), Band(2)))", "Heads(Causal(), patterns=(Band(2),))", "(Causal()\n| Band(3))"),
    *("Causal() # a comment", "Band(3, right=-1)", "Blocks(((), (0,)))", "Blocks(())", "Blockwise((), 3)"),
    *("Star(n=None)", "Random(2, head=None)", "\tCausal() ", "Band(-True, 3)", "Pieces(2, Band(1), l2l=Band(2))"),
    *("Segment(memory=3, length=4)", "Band(00)"),
)
