"""Reference pages of parts: one page for each kind, with an entry for each public class."""

import functools
import importlib
import inspect
import types
from collections.abc import Iterator

import kinformer
from kinformer.core.discover import modules, part_names
from kinformer.core.module_import import PACKAGE
from kinformer.core.pattern import Pattern
from kinformer.core.public_names import CONTRACTS
from kinformer.lab.claims.support.claim_report import measured_verdict
from kinformer.pages.module_docs import defined_in, first_sentence, public_parts, sentence
from kinformer.pages.pictures.support.figure_html import figure_html
from kinformer.pages.pictures.who_reads import pictures
from kinformer.pages.site.entries import declared_examples, description, entry
from kinformer.pages.site.markdown import SitePlace, anchor, code_block, prose, relative, table

PARTS = {  # the kinds of parts, in the order of the documentation, each with its title
    "patterns": "Patterns",
    "mechanisms": "Mechanisms",
    "biases": "Biases",
    "scores": "Scores",
    "projections": "Projections",
    "positions": "Positions",
    "scalings": "Scalings of rotary positions",
    "maps": "Feature maps",
    "shorteners": "Shorteners",
    "aggregations": "Aggregations",
    "memories": "Memories",
    "blocks": "Blocks and joins",
    "feedforward": "Feed-forward layers",
    "mixers": "Mixers",
    "norms": "Norms",
    "depth": "Depth",
    "exits": "Exits",
    "losses": "Losses",
    "poolers": "Poolers",
    "models": "Models",
    "search": "Searches",
    "convert": "Conversions",
    "tasks": "Tasks",
}
FILES = {  # the kinds whose files are the entries
    "data": "Kinds of data",
    "environments": "Environments",
    "claims": "Claims",
    "laws": "List of laws",
    "executors": "Executors",
}


def page_of_kind(kind: str) -> str:
    """Return the path of a kind's page.

    kind: the kind, such as "patterns".
    """
    return f"reference/{kind}.md"


def page_of_member(file: str) -> str:
    """Return the path of a member's page.

    file: the name of its file, such as "gpt".
    """
    return f"reference/members/{file}.md"


def link_to_file(place: str, page: str) -> str:
    """Return a link to a part's file; plain code if the reference has no page for it.

    place: kind and name of the file, such as "patterns/band" or "train/fit".
    page: the path of the page.
    """
    if place.partition("/")[0] not in (*PARTS, *FILES, "members"):
        return f"`{place}`"
    return f"[`{place}`]({relative(place_of_file(place), page)})"


def public_names_of(module: types.ModuleType) -> list[str]:
    """Return the public names that the file of a part defines, in order.

    module: the module of the part.
    """
    listed = _names_by_file().get(module.__name__.removeprefix("kinformer."), [])
    ordered = [name for name, _ in defined_in(module) if name in listed]
    return ordered + sorted(set(listed).difference(ordered))


@functools.cache  # part_names reads every file of the library
def _names_by_file() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, file in part_names().items():
        names.setdefault(file, []).append(name)
    return names


def kind_page(kind: str) -> str:
    """Return the reference page of a kind: a table of its files, and an entry for each public class.

    kind: the kind, such as "patterns".
    """
    rows, entries = [], []
    for file, module in _modules_with_public_names(kind).items():
        names = public_names_of(module)
        links = ", ".join(f"[`{name}`](#{anchor(name)})" for name in names)
        rows.append((links or f"`{file}`", prose(_without_name(first_sentence(module)))))
        examples = declared_examples(module)
        for name in names:
            entries.append(entry(name, getattr(kinformer, name), examples=examples.get(name)))
            entries += _pictures(module, getattr(kinformer, name))
    intro = prose(" ".join((_folder_docs(kind)).split()))
    return "\n\n".join([f"# {PARTS[kind]}", intro, table(("part", "description"), rows), *entries]) + "\n"


def _pictures(module: types.ModuleType, subject: object) -> list[str]:
    """The picture of the first example of a pattern; empty for other parts, and for patterns of a batch's tensors."""
    made = (item() if inspect.isfunction(item) else item for item in getattr(module, "EXAMPLES", ()))
    patterns = (pattern for pattern in made if isinstance(pattern, Pattern) and type(pattern) is subject)
    first = next(patterns, None)
    return list(map(figure_html, pictures(first, None))) if first is not None and not first.tensors() else []


def _modules_with_public_names(kind: str) -> dict[str, types.ModuleType]:
    """The files of a kind's parts, then its shared files with public classes, such as `HammingKMeans`."""
    files = modules(kind)
    shared = [home for home in _names_by_file() if home.split(".")[-2] == kind and home.split(".")[-1] not in files]
    return files | {home.split(".")[-1]: importlib.import_module(f"kinformer.{home}") for home in sorted(shared)}


def _without_name(text: str) -> str:
    """A first sentence without the name before its colon, which stands in the table already."""
    name, colon, rest = text.partition(": ")
    return rest[:1].upper() + rest[1:] if colon and " " not in name else text


def _folder_docs(kind: str) -> str:
    """The docstring of the first folder of a kind: in kinformer, nn, lab, attend or core."""
    places = [PACKAGE / package / kind for package in ("", "nn", "lab", "attend", "core")]
    home = next(place for place in places if (place / "__init__.py").is_file())
    return (home / "__init__.py").read_text("utf-8").strip().strip('"')


def file_page(kind: str) -> str:
    """Return the reference page of data, environments, claims, laws or executors: an entry for each file.

    kind: one of these kinds.
    """
    listed = {name: module for name, module in modules(kind).items() if _is_listed(kind, module)}
    rows = [
        (f"[`{name}`](#{anchor(name)})", prose(_description(kind, name, module))) for name, module in listed.items()
    ]
    entries = ["\n\n".join([f"## {name}", *_file_entry(kind, name, module)]) for name, module in listed.items()]
    intro = prose(" ".join(_folder_docs(kind).split()))
    return "\n\n".join([f"# {FILES[kind]}", intro, table(("name", "description"), rows), *entries]) + "\n"


def _is_listed(kind: str, module: types.ModuleType) -> bool:
    marks = {"data": "FORM", "laws": "SAYS", "claims": "claim", "executors": "read"}
    return kind not in marks or hasattr(module, marks[kind])


def _summary(module: types.ModuleType) -> str:
    says = getattr(module, "SAYS", "")
    return f"{says[:1].upper()}{says[1:]}." if says else _without_name(first_sentence(module))


def _description(kind: str, name: str, module: types.ModuleType) -> str:
    """The summary of a file; the verdict stands before the summary of a claim."""
    return f"{measured_verdict(name)}: {_summary(module)}" if kind == "claims" else _summary(module)


def _file_entry(kind: str, name: str, module: types.ModuleType) -> Iterator[str]:
    """The blocks of an entry: the documentation of the file, and the command or the arguments that belong to it."""
    if kind == "claims":  # before the sentence, which reads like a fact
        yield f"Verdict of our measurement: **{measured_verdict(name)}**"
    text = (module.__doc__ or "").strip()
    for paragraph in text.split("\n\n"):
        yield prose(" ".join(paragraph.split()))
    if kind == "data":
        yield code_block(f"--data {module.FORM}", "text")
        yield from list(description(module.read))[1:]
        yield code_block(f"kinformer show data/{name}", "sh")
    if kind == "environments":
        environment = [subject for _, subject in public_parts(module)][-1]
        yield from description(environment)
        yield code_block(f"kinformer show {name}", "sh")
    if kind == "claims":
        yield f"{prose(_summary(module))}"
        yield f"**Source:** {prose(module.SOURCE)}"
        yield code_block(f"kinformer claim {name}", "sh")
    if kind == "laws":
        over = ", ".join(f"`{word}`" for word in module.OVER)
        yield f"The law: {prose(module.SAYS)}."
        yield f"It tests: {over}."
        yield code_block(f"kinformer check FILE.py --law {name}", "sh")


def contract_pages() -> dict[str, str]:
    """Return the pages of public functions and of public classes that are not parts, by path."""
    functions, classes = [], []
    for name in sorted(CONTRACTS, key=str.lower):
        subject = getattr(kinformer, name)
        if isinstance(subject, type):
            classes.append((name, subject))
        else:
            functions.append((name, subject))
    texts = {
        FUNCTIONS: ("Functions", "The functions of `kinformer`, imported as `import kinformer as kf`.", functions),
        CLASSES: ("Contracts and data types", "Base classes of parts, and the values that parts exchange.", classes),
    }
    return {
        path: "\n\n".join(
            [
                f"# {title}",
                intro,
                table(("name", "description"), [_contract_row(name, subject) for name, subject in listed]),
                *(entry(name, subject, has_methods=True) for name, subject in listed),
            ]
        )
        + "\n"
        for path, (title, intro, listed) in texts.items()
    }


FUNCTIONS, CLASSES = "reference/functions.md", "reference/classes.md"


def _contract_row(name: str, subject: object) -> tuple[str, str]:
    return f"[`kf.{name}`](#{anchor(name)})", prose(sentence(subject.__doc__ or ""))


def places_of_names() -> dict[str, SitePlace]:
    """Return the place of each public name's entry in the reference."""
    places = {}
    for name in CONTRACTS:
        page = CLASSES if isinstance(getattr(kinformer, name), type) else FUNCTIONS
        places[name] = SitePlace(page, anchor(name))
    for file, names in _names_by_file().items():
        kind, stem = file.split(".")[-2:]
        page = page_of_member(stem) if kind == "members" else page_of_kind(kind)
        places |= {name: SitePlace(page, anchor(name)) for name in names}
    return places


def place_of_file(place: str) -> SitePlace:
    """Return the place of a part's file in the reference.

    place: kind and name of the file, such as "patterns/band", "members/gpt" or "laws/peek".
    """
    kind, _, file = place.partition("/")
    if kind == "members":
        return SitePlace(page_of_member(file))
    if kind in FILES:
        return SitePlace(page_of_kind(kind), anchor(file))
    homes = [home for home in _names_by_file() if home.split(".")[-2:] == [kind, file]]
    names = public_names_of(importlib.import_module(f"kinformer.{homes[0]}")) if homes else []
    return SitePlace(page_of_kind(kind), anchor(names[0]) if names else "")
