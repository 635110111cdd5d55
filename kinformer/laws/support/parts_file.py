"""Python files with parts of the user, for `kinformer check`: their EXAMPLES, or a one-line error."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import MemberRecord, Origin
from kinformer.core.example import Example
from kinformer.core.module_import import load_user_module
from kinformer.core.pattern import Pattern
from kinformer.laws.support.layer_forms import FORMS
from kinformer.laws.support.verdicts import JudgedPart, error_line, laws

CLASSES = tuple(FORMS)


class Unreadable(ValueError):
    """Raised if the parts of a user's file cannot be tested; the text says in one line what to correct."""


@dataclass(frozen=True, eq=False)
class PartsFile:
    """A user's Python file and the parts to test in it, from `read_parts`.

    path: the file.
    module: the imported file.
    examples: the parts to test: the entries of its EXAMPLES, or the file itself if it is an executor.
    """

    path: Path
    module: ModuleType
    examples: tuple[JudgedPart, ...]


def read_parts(text: str) -> PartsFile:
    """Import a user's Python file and return the parts to test in it.

    text: the path of the file, such as "mine.py", or "mine.py:Name" for the examples of one part or member (named
        model) only.

    Errors: Unreadable if the file, the name or an example is wrong.
    """
    before, colon, name = text.rpartition(".py:")
    path = Path(f"{before}.py" if colon else text).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix != ".py"):
        raise Unreadable(f"{path} is not a Python file; give a file such as mine.py")
    module = _run(path)
    if hasattr(module, "cost") and hasattr(module, "read") and not hasattr(module, "EXAMPLES"):
        return PartsFile(
            path, module, (JudgedPart(path.stem, lambda: module, file=path),)
        )  # an executor is judged as a file
    examples = tuple(_examples(path, module))
    if colon:
        titles = {title_of(example): example for example in examples}
        if name not in titles:
            raise Unreadable(f"no example of {path} is a {name!r}{suggest_names(name, titles)}")
        examples = tuple(example for example in examples if title_of(example) == name)
    return PartsFile(path, module, examples)


def title_of(example: JudgedPart) -> str:
    """Return the name of a part to test: the name of its member (named model) or of its class.

    example: the part. The name of an executor is the name of its file.
    """
    part = example.make()
    if isinstance(part, ModuleType):
        return example.name
    return part.member.name if isinstance(getattr(part, "member", None), MemberRecord) else type(part).__name__


def with_article(word: str) -> str:
    """Return the word with "a" or "an" before it."""
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def _run(path: Path) -> ModuleType:
    try:
        return load_user_module(str(path))
    except LookupError as error:
        raise Unreadable(str(error)) from error
    except ImportError as error:
        why = error.__cause__ or error
        raise Unreadable(f"{path} cannot be imported: {error_line(why, path)}{_import_advice(why, path)}") from error
    except SystemExit as error:
        raise Unreadable(
            f"{path} exits Python while it is imported; put such code under if __name__ == '__main__'"
        ) from error


def _import_advice(error: BaseException, path: Path) -> str:
    """Return advice if the missing module lies in the same folder."""
    folder, name = path.resolve().parent, error.name if isinstance(error, ModuleNotFoundError) else None
    is_neighbour = name is not None and any((folder / end).exists() for end in (name, f"{name}.py"))
    return f"; it is in the same folder, so run with PYTHONPATH={folder}" if is_neighbour else ""


def _examples(path: Path, module: ModuleType) -> Iterator[JudgedPart]:
    entries = getattr(module, "EXAMPLES", None)
    if entries is None:
        raise Unreadable(f"{path} has no EXAMPLES; end it with {_advice(module)}")
    if not isinstance(entries, tuple | list) or not entries:
        text = "empty" if isinstance(entries, tuple | list) else with_article(type(entries).__name__)
        raise Unreadable(f"EXAMPLES of {path} is {text}, expected a tuple; write {_advice(module)}, with the comma")
    for n, entry in enumerate(entries):
        yield _example(path, f"EXAMPLES[{n}]", entry)


def _example(path: Path, label: str, entry: Any) -> JudgedPart:
    kind = type(entry).__name__
    if not isinstance(entry, Pattern | Example):
        if isinstance(entry, CLASSES):
            raise Unreadable(
                f"{label} of {path} is {with_article(kind)} that is already built; write lambda: {kind}(...)"
            )
        if not callable(entry):
            raise Unreadable(f"{label} of {path} is {with_article(kind)}, which is neither a pattern nor a function")
    example = Example.from_entry(entry)
    _check_breaks(path, label, example)
    if not (inspect.isclass(example.make) and issubclass(example.make, Pattern)):
        part = _build(path, label, example.make)
        if not isinstance(part, CLASSES):
            words = ", ".join(dict.fromkeys(filter(None, (_class_words(kind_of_part) for kind_of_part in CLASSES))))
            raise Unreadable(
                f"{label} of {path} makes {with_article(type(part).__name__)}, expected one of {words} or member"
            )
    return JudgedPart.from_example(label, example, path)


def _build(path: Path, label: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        raise Unreadable(f"{label} of {path} cannot be built: {error_line(error, path)}") from error


def _check_breaks(path: Path, label: str, example: Example) -> None:
    breaks = example.breaks
    for field, like in (("breaks", '{"chunk": "it sorts the whole row"}'), ("shares", '{"*.bias.u": "one for all"}')):
        declared = getattr(example, field)
        if not isinstance(declared, dict) or not all(
            isinstance(word, str) for pair in declared.items() for word in pair
        ):
            key_kind = "law" if field == "breaks" else "name"
            raise Unreadable(f"{field} of {label} of {path} must be a dict of {key_kind} and reason, like {like}")
    for law in breaks:
        if law not in laws():
            raise Unreadable(
                f"breaks of {label} of {path} names {law!r}, which is not a law{suggest_names(law, laws())}"
            )


def _class_words(kind: type) -> str:
    return "".join(f" {c.lower()}" if c.isupper() else c for c in kind.__name__).strip().replace("module", "norm")


def _advice(module: ModuleType) -> str:
    for name, value in reversed(list(vars(module).items())):
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(getattr(value, "origin", None), Origin) or (
            inspect.isclass(value) and issubclass(value, CLASSES)
        ):
            pattern = inspect.isclass(value) and issubclass(value, Pattern)
            return f"EXAMPLES = ({name}(...),)" if pattern else f"EXAMPLES = (lambda: {name}(...),)"
    return "EXAMPLES = (MyPattern(...),) for a pattern, EXAMPLES = (lambda: MyPart(...),) for anything else"
