"""Parts that `kinformer check` tests: the EXAMPLES of a user's Python file, or a trained model."""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kinformer.bridge.load import load
from kinformer.checkpoint.checkpoint import MemberNeeded
from kinformer.checkpoint.hub import hf_path
from kinformer.checkpoint.model_files import CONFIG, read_config
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import MemberRecord, Origin, modules
from kinformer.core.example import Example
from kinformer.core.module_import import load_user_module
from kinformer.core.pattern import Pattern
from kinformer.laws.foreign.support.saving import quiet_transformers
from kinformer.laws.support.layer_forms import FORMS
from kinformer.laws.support.verdicts import JudgedPart, error_line, laws, laws_of

CLASSES = tuple(FORMS)
ABOUT_CODE = ("learns", "own_weights", "compiles")  # laws about the code of a member, which no weights can break


class Unreadable(ValueError):
    """Raised if the parts of a user's file cannot be tested; the text says in one line what to correct."""


@dataclass(frozen=True, eq=False)
class PartsFile:
    """A user's Python file or a trained model, and the parts to test in it, from `read_parts`.

    path: the file, or the folder of the model.
    module: the imported file; None for a folder.
    examples: the parts to test: the entries of its EXAMPLES, the file itself if it is an executor, or the model.
    """

    path: Path
    module: ModuleType | None
    examples: tuple[JudgedPart, ...]

    @property
    def is_own_model(self) -> bool:
        """True for the folder of a trained model of kinformer."""
        return self.module is None and not self.examples[0].is_foreign

    def laws_to_test(self, chosen: Sequence[str]) -> tuple[str, ...]:
        """Return the laws to test: for a trained model, those that its weights can break.

        chosen: names of laws; empty for all.

        Errors: Unreadable if a chosen law is about the code of a member, for a trained model.
        """
        about_code = ABOUT_CODE if self.is_own_model else ()
        for name in chosen:
            if name in about_code:
                raise Unreadable(
                    f"the law {name!r} is about the code of a member: got the trained model {self.path}, expected a "
                    "file. Give the file of its member"
                )
        known = {name: law for example in self.examples for name, law in laws_of(example).items()}
        for name in chosen:
            if name not in known:
                raise Unreadable(f"there is no law {name!r} for {self.path}{suggest_names(name, known)}")
        return tuple(name for name in chosen or known if name not in about_code)


def read_parts(text: str, member: Callable[..., Any] | None = None) -> PartsFile:
    """Read the parts to test: import a user's Python file, or load a trained model.

    text: the path of the file, such as "mine.py", or "mine.py:Name" for the examples of one part or member (named
        model) only. Or the folder of a trained model, or "hf:FOLDER" for a folder of transformers.
    member: the function that built the trained model; required only if it is a user's own.

    Errors: Unreadable if the file, the name, an example or the folder is wrong.
    """
    if text.startswith("hf:"):
        return _read_foreign(text)
    before, colon, name = text.rpartition(".py:")
    path = Path(f"{before}.py" if colon else text).expanduser()
    if path.is_dir():
        return _read_model(path, member)
    if path.is_file() and path.suffix != ".py":
        raise Unreadable(f"{path} is not a Python file; give a file such as mine.py, or the folder of a trained model")
    module = _run(path)
    if _is_executor(module) and not hasattr(module, "EXAMPLES"):
        return PartsFile(
            path, module, (JudgedPart(path.stem, lambda: module, file=path),)
        )  # an executor is judged as a file
    if colon and (alone := _without_examples(path, module, name)) is not None:
        return PartsFile(path, module, (alone,))
    if colon and not hasattr(module, name) and not hasattr(module, "EXAMPLES"):
        names = [word for word, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise Unreadable(f"{path} has no {name!r}{suggest_names(name, names)}")
    examples = tuple(_examples(path, module))
    if colon:
        titles = {title_of(example): example for example in examples}
        if name not in titles:
            raise Unreadable(f"no example of {path} is a {name!r}{suggest_names(name, titles)}")
        examples = tuple(example for example in examples if title_of(example) == name)
    return PartsFile(path, module, examples)


def _is_executor(module: ModuleType) -> bool:
    """Return True if a module has the functions of an executor, cost(request) and read(request)."""
    functions = [getattr(module, name, None) for name in ("cost", "read")]
    return all(inspect.isfunction(each) and len(inspect.signature(each).parameters) == 1 for each in functions)


def _without_examples(path: Path, module: ModuleType, name: str) -> JudgedPart | None:
    """Return a part of a file without EXAMPLES that can be built without arguments, such as a member; else None."""
    build: Any = getattr(module, name, None)
    is_of_file = callable(build) and build.__module__ == module.__name__ and not inspect.isabstract(build)
    if hasattr(module, "EXAMPLES") or not is_of_file:
        return None
    parameters = inspect.signature(build).parameters.values()
    if any(parameter.default is parameter.empty for parameter in parameters):
        return None
    return _example(path, name, Example(build))


def _read_model(folder: Path, member: Callable[..., Any] | None) -> PartsFile:
    """Return a trained model as the only part to test; laws get copies of it."""
    try:
        model = load(folder, member=member)
    except MemberNeeded as error:
        raise Unreadable(
            f"the model in {folder} was built by {error.name!r} of {error.file}. "
            f"Give --member {error.file}:{error.name}"
        ) from error
    except (OSError, ValueError) as error:
        raise Unreadable(str(error)) from error
    name: str = model.member.name
    module = modules("members").get(name) if member is None else sys.modules.get(member.__module__)
    examples = [JudgedPart.from_example(name, Example.from_entry(entry)) for entry in getattr(module, "EXAMPLES", ())]
    own = [example for example in examples if example.breaks and title_of(example) == name]
    reasons = {law: reason for example in own for law, reason in example.breaks.items()}
    return PartsFile(folder, None, (JudgedPart(name, lambda: copy.deepcopy(model), may_break=reasons),))


def _read_foreign(text: str) -> PartsFile:
    """Return a model of transformers as the only part to test."""
    try:
        folder = _hf_folder(text)
        content = read_config(folder / CONFIG)
    except (ValueError, OSError, ImportError) as error:
        raise Unreadable(str(error)) from error
    if not isinstance(content, dict):
        raise Unreadable(f"{folder / CONFIG} is {with_article(type(content).__name__)}, expected an object of JSON")
    if content.get("model_type") == "kinformer":
        raise Unreadable(f"{text} holds a model of kinformer. Give the folder without hf:")
    try:
        import transformers

        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}  # code of a folder never runs
        with quiet_transformers():
            config = transformers.AutoConfig.from_pretrained(folder, **options)
            names = [name for name in config.architectures or () if hasattr(transformers, name)]
            kind = getattr(transformers, names[0]) if names else transformers.AutoModel
            model = kind.from_pretrained(folder, dtype="auto", use_safetensors=True, **options).eval()
    except ModuleNotFoundError as error:
        advice = "run `pip install '.[hf]'` in kinformer's folder"
        raise Unreadable(f"{text} cannot be loaded without {error.name}: {advice}") from error
    except Exception as error:
        raise Unreadable(f"{text} cannot be loaded: {error_line(error, None)}") from error
    return PartsFile(folder, None, (JudgedPart(type(model).__name__, lambda: model),))


def _hf_folder(text: str) -> Path:
    """Return the folder of "hf:FOLDER", or of the copy of "hf:ORG/NAME"."""
    folder = hf_path(text)
    if not (folder / CONFIG).is_file():
        raise Unreadable(f"{folder} is no folder of transformers: expected one with config.json and model.safetensors")
    return folder


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
