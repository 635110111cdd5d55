"""Import the modules of part files, of plugins and of users, with errors of one line."""

import functools
import hashlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path

from kinformer.core.missing_path import missing_path

PACKAGE = Path(__file__).resolve().parents[1]


def import_or_explain(name: str, load: Callable[[], object]) -> types.ModuleType:
    """Return the Python module that `load` imports, with errors that name it.

    name: the module's name in messages.
    load: a function that imports and returns the module.

    Errors: ImportError of one line if `load` fails or returns something else.
    """
    try:
        module = load()
    except Exception as error:
        raise ImportError(f"{name} failed to import: {type(error).__name__}: {error}") from error
    if not isinstance(module, types.ModuleType):
        raise ImportError(f"{name} is an object of type {type(module).__name__}, expected a module")
    return module


def dotted_name(file: Path) -> str:
    """Return the module name of a file of the library."""
    return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def load_user_module(path: str) -> types.ModuleType:
    """Execute a user's own file and return it as a module.

    Each call executes the file again, so its classes differ from the classes of earlier calls. A file of the library is
    imported under its own name, so that its classes are the classes that the library knows.

    path: the path of the file.

    Errors: LookupError if there is no such Python file; ImportError if it fails to run.
    """
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise LookupError(missing_path(path))
    if file.suffix == ".py" and file.is_relative_to(PACKAGE):
        return import_or_explain(path, functools.partial(importlib.import_module, dotted_name(file)))
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise LookupError(f"cannot read {path}: {error.strerror}") from error
    full = f"kinformer_own_{digest[:16]}_{file.stem}"
    if file.suffix != ".py":
        raise LookupError(f"{path} is not a Python file")
    spec = importlib.util.spec_from_loader(full, _Fresh(full, str(file)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full] = module
    try:
        return import_or_explain(path, lambda: spec.loader.exec_module(module) or module)  # type: ignore[union-attr]
    except BaseException:
        sys.modules.pop(full, None)
        raise


class _Fresh(SourceFileLoader):
    """A loader that compiles the source each time, because the dates of a cache have whole seconds."""

    def get_code(self, fullname: str) -> types.CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)
