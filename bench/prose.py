"""Count what makes the text of the package hard to read: long sentences, inverted phrases, unclear first lines.

    python bench/prose.py                       # the counts by folder
    python bench/prose.py kinformer/nn/biases   # every place in a folder or a file, to mend them

The text: the docstrings of modules, public classes and public functions; every string of five words and more, such as
messages, help texts and reasons; and the Markdown files. Code, formulas, tables and sources are left out. `make test`
holds the counts at `LIMITS`.
"""

import argparse
import ast
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "DESIGN.md", "CHANGELOG.md", "bench/README.md", "docs")
FIRST_LINE = 100  # characters of the first line of a docstring
SENTENCE = 30  # words of a sentence
STRING = 5  # words of a string that counts as prose
DESCRIBED = r"(?:of_parts|of_mechanisms|overload)\b"  # decorators of functions whose parameters are described elsewhere
# A first line begins with a noun or a verb, and so with none of these.
OPENERS = frozenset(
    """what which who whose whom where when how why as of by in on at if while because since from with without between
    about before after behind beside under over for to and or but so that those there here it its they them none both
    either neither such""".split()
)
# Phrases that hide the subject of a sentence. Each pattern is searched in lower case.
PHRASES = {
    "what ... is": r"\bwhat (?:\w+ ){1,6}(?:is|are|was|does|has|makes|reads)\b",
    "of which, of whom": r"\b(?:of which|of whom|of whose|none of whose|by which|from which|to which)\b",
    "as ... has it": r"\bas (?:\w+ ){1,4}ha(?:s|ve) it\b",
    "that of, those of": r"\b(?:that|those) (?:of|by|at|in|with|under|before|after|behind)\b",
    "what, how, of at the start": r"(?:^|[.:] )(?:what|how|which|of|by) \w+ ",
    "came, is said, is told": r"\b(?:came|is said|are said|is told|are told|unless told|is asked|are asked)\b",
    "no ... but, alone": r"\bno \w+ but\b|\b\w+ alone\b|\bnothing else\b",
    "where ... (a condition)": r"\bwhere (?:it|one|none|there|they|nothing|nobody|a|an|the) \b",
}
QUESTIONS = ("what ... is", "what, how, of at the start")  # phrases that a question may begin with
FIRST_LINE_TOO_LONG = "first line too long"
UNCLEAR_OPENER = "first line begins with no noun or verb"
LONG_SENTENCE = f"more than {SENTENCE} words"
# The most places of each rule. A few are right in their context, such as lists of names, captions and labels.
LIMITS = {FIRST_LINE_TOO_LONG: 0, UNCLEAR_OPENER: 0, LONG_SENTENCE: 8, **dict.fromkeys(PHRASES, 3)}
LIMITS["what, how, of at the start"] = 16


class Finding(NamedTuple):
    """A place of the text that breaks a rule: file, line, rule and words."""

    path: Path
    line: int
    rule: str
    text: str


class Text(NamedTuple):
    """A piece of prose: file, line, words, and whether it is a docstring."""

    path: Path
    line: int
    words: str
    is_docstring: bool = False


class Parameter(NamedTuple):
    """A public parameter without a description: file, line, the class or function, and its name."""

    path: Path
    line: int
    owner: str
    name: str


def texts_of(path: Path) -> Iterator[Text]:
    """Yield the prose of a Python or Markdown file."""
    if path.suffix == ".md":
        text = path.read_text(encoding="utf-8")
        table = re.match(r"\+\+\+\n.*?\n\+\+\+\n", text, re.DOTALL)  # of the page of an idea
        begin = table.end() if table else 0
        yield Text(path, 1 + text[:begin].count("\n"), text[begin:])
        return
    yield from _docstrings(path, _tree(path))
    yield from _strings(path, _tree(path))


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _docstrings(path: Path, node: ast.AST) -> Iterator[Text]:
    """The docstrings of a module and of the public definitions in it."""
    if (text := ast.get_docstring(node)) is not None:  # type: ignore[arg-type]
        yield Text(path, node.body[0].lineno, text, True)  # type: ignore[attr-defined]
    for child in getattr(node, "body", ()):
        public = isinstance(child, ast.ClassDef | ast.FunctionDef) and not child.name.startswith("_")
        if public:
            yield from _docstrings(path, child)


def _strings(path: Path, node: ast.AST) -> Iterator[Text]:
    """Every string of five words and more that is no docstring, with each value of an f-string as one word."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value
    elif isinstance(node, ast.JoinedStr):
        words = "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):  # a value may choose between messages
                yield from _strings(path, part.value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _strings(path, child)
        return
    if len(words.split()) >= STRING and " } " not in words:  # a style sheet is no prose
        yield Text(path, node.lineno, words)


def findings(text: Text) -> Iterator[Finding]:
    """Yield every place of a text that breaks a rule."""
    if text.is_docstring:
        first = text.words.partition("\n")[0]
        if len(first) > FIRST_LINE:
            yield Finding(text.path, text.line, FIRST_LINE_TOO_LONG, first)
        opener = re.sub(r"^[\w.]+: (?=\w)", "", first).split(" ")[0].strip("`,").lower()
        if opener in OPENERS:
            yield Finding(text.path, text.line, UNCLEAR_OPENER, first)
    for offset, sentence in sentences(text.words):
        if len(re.findall(r"[A-Za-z][\w'-]*", sentence)) > SENTENCE:
            yield Finding(text.path, text.line + offset, LONG_SENTENCE, sentence)
        for name, pattern in PHRASES.items():
            if re.search(pattern, sentence.lower()) and not (name in QUESTIONS and sentence.rstrip("* ").endswith("?")):
                yield Finding(text.path, text.line + offset, name, sentence)


def sentences(words: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a text, each with its line, without code, formulas, tables, links and sources."""
    paragraph: list[str] = []
    begin, fenced = 0, False
    for number, line in enumerate([*words.splitlines(), ""]):
        fence = line.lstrip().startswith("```")
        fenced ^= fence
        # names before a colon begin an item, such as a parameter; other words do so only at the start of a paragraph
        item = re.match(r"\s*(?:[-*] |\d+\. |\w+(?:, \w+)*: |#|\|)", line)
        item = item or (None if paragraph else re.match(r"\s*[\w, ]{1,40}: ", line))
        if not line.strip() or fence or fenced or line.startswith("    ") and not paragraph or item:
            yield from ((begin, sentence) for sentence in _split(" ".join(paragraph)))
            paragraph = []
        if not fence and not fenced and line.strip() and not line.lstrip().startswith(("|", "#", ">>>")):
            if line.startswith("    ") and not paragraph and not item:
                continue  # an indented block is code or a formula
            if not paragraph:
                begin = number
            paragraph.append(re.sub(r"^\s*(?:[-*] |\d+\. )", "", line).strip())


def _split(paragraph: str) -> list[str]:
    """The sentences of a paragraph, with X for each piece of code, parenthesis and link."""
    plain = re.sub(r"`[^`]*`|\([^()]*\)|https?://\S+|\[[^\]]*\]", " X ", paragraph)
    return [part for part in re.split(r"(?<=[.?!:])\s+(?=[A-Z`\"])", plain) if re.search(r"[a-z]", part)]


def undescribed_parameters(path: Path) -> Iterator[Parameter]:
    """Yield the parameters of public functions and constructors that their docstrings do not name.

    The commands are left out, because help texts describe their options. So are overloads, and functions with the
    decorator `of_parts` or `of_mechanisms`, which describes the arguments of all functions that it takes.
    """
    if path.parent.name == "cli":
        return
    for node in _tree(path).body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        if isinstance(node, ast.FunctionDef) and any(
            re.match(DESCRIBED, ast.unparse(mark)) for mark in node.decorator_list
        ):
            continue
        description = ast.get_docstring(node) or ""
        if isinstance(node, ast.FunctionDef):
            names = _parameters(node)
        else:
            made_by = next(
                (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None
            )
            description += "\n" + (ast.get_docstring(made_by) or "" if made_by else "")
            names = _parameters(made_by)[1:] if made_by else _fields(node)
        for name in names:
            if not re.search(rf"\b{re.escape(name)}\b", description):
                yield Parameter(path, node.lineno, node.name, name)


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]]


def _fields(node: ast.ClassDef) -> list[str]:
    """The fields of a dataclass or a NamedTuple, which are the parameters of its constructor."""
    marks = [ast.unparse(mark) for mark in [*node.decorator_list, *node.bases]]
    if not any("dataclass" in mark or "NamedTuple" in mark for mark in marks):
        return []
    fields = [
        part for part in node.body if isinstance(part, ast.AnnAssign) and "ClassVar" not in ast.unparse(part.annotation)
    ]
    names = [part.target.id for part in fields if isinstance(part.target, ast.Name)]
    return [name for name in names if not name.startswith("_")]


def text_files(paths: Iterable[Path]) -> list[Path]:
    """Return the Python and Markdown files among some paths and below them."""
    found = {
        file for path in paths for file in ([path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md")])
    }
    return sorted(found)


def public_files() -> list[Path]:
    """Return every file that holds public text: the package and the Markdown pages."""
    return text_files([ROOT / "kinformer", *(ROOT / page for page in PAGES)])


def main() -> None:
    """Print the counts by folder, or every place below the paths that are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path)
    paths = parser.parse_args().paths
    if paths:
        for path in text_files(paths):
            for place in (place for text in texts_of(path) for place in findings(text)):
                print(f"{place.path}:{place.line}: {place.rule}: {place.text:.150}")
            for missing in undescribed_parameters(path) if path.suffix == ".py" else ():
                print(f"{missing.path}:{missing.line}: no description of {missing.name} in {missing.owner}")
        return
    by_folder: dict[str, Counter[str]] = {}
    for path in public_files():
        folder = "/".join(path.relative_to(ROOT).parts[:2][: 2 if path.suffix == ".py" else 1])
        counts = by_folder.setdefault(folder, Counter())
        for text in texts_of(path):
            counts["sentences"] += sum(1 for _ in sentences(text.words))
            counts.update(place.rule for place in findings(text))
        if path.suffix == ".py":
            counts["parameters without a description"] += sum(1 for _ in undescribed_parameters(path))
    rules = sorted({rule for counts in by_folder.values() for rule in counts})
    for folder, counts in [*by_folder.items(), ("all", sum(by_folder.values(), Counter()))]:
        print(folder, *(f"{rule} {counts[rule]}" for rule in rules if counts[rule]), sep="; ")


if __name__ == "__main__":
    main()
