"""What holds for every file of the project, those to come included."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import kinformer
from bench.words import MOST, bound_names, repeated_classes, source_files, vague_share
from kinformer.attend import attend
from kinformer.core import discover
from kinformer.core.patterns.causal import Causal
from kinformer.core.public_names import CONTRACTS
from tests.stub import STUB, stub_text

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "kinformer"
FILES = sorted(PACKAGE.rglob("*.py"))
MORE_THAN_A_DOCSTRING = {PACKAGE / "__init__.py", PACKAGE / "attend" / "__init__.py"}
PART_FILES = [file for kind in discover.kinds() for file in discover.part_files(kind).values()]
LAWS = set(discover.part_files("laws"))
# rules of exits and losses are parts of what depth/ and memories/ hold; the laws judge executors as files
NO_KINDS = {"executors", "exits", "losses", "scalings", "search"}
LONGEST = 400  # lines of a file
PUBLIC = discover.part_names() | CONTRACTS
ATTEND = PACKAGE / "attend.py"  # the name of a folder, and no file
# Classes in constructors of public classes that no user makes: what a forward, a decoding and Datastore.open hand on.
MADE_BY_THE_LIBRARY = {
    *("layer.Memo", "request.Memo", "layer.Decoding", "datastore.Manifest", "datastore.Shards"),
    *("conversion_report.ConversionPlan", "conversion_report.ReadingCost"),
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LAYERS = PROJECT["tool"]["importlinter"]["contracts"][0]["layers"]  # the highest first
EXECUTOR_FILES = sorted((PACKAGE / "attend" / "executors").glob("[!_]*.py"))


def short(file: Path) -> str:
    return str(file.relative_to(ROOT))


def lines(file: Path) -> int:
    return file.read_text(encoding="utf-8").count("\n")


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(file: Path) -> Iterator[str]:
    """Dotted names of everything that a file imports, at any depth of its code, relative imports resolved."""
    package = list(file.relative_to(ROOT).parts[:-1])
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            home = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{home}.{alias.name}" for alias in node.names)


def test_there_are_parts_to_look_at() -> None:
    assert len(PART_FILES) > 20


@pytest.mark.parametrize("folder", sorted({file.parent for file in FILES}), ids=short)
def test_a_folder_says_what_it_holds_and_no_more(folder: Path) -> None:
    init = folder / "__init__.py"
    body = tree(init).body
    assert ast.get_docstring(ast.Module(body, [])), f"{short(init)} must say in a docstring what its folder holds"
    assert len(body) == 1 or init in MORE_THAN_A_DOCSTRING, f"{short(init)} may hold nothing but its docstring"


def test_a_file_among_parts_has_examples_or_serves_several() -> None:
    """A part without EXAMPLES would not be judged; what one part alone needs belongs into its file."""
    imported = {file: [f"{name}." for name in imports(file)] for file in FILES}
    for kind in discover.kinds():
        for folder in {file.parent for file in discover.part_files(kind).values()}:
            for file in set(folder.glob("[!_]*.py")) - set(PART_FILES):
                name = ".".join(file.relative_to(ROOT).with_suffix("").parts) + "."
                users = [
                    short(user)
                    for user, names in imported.items()
                    if any(imported_name.startswith(name) for imported_name in names)
                ]
                if len(users) == 1 and lines(file) + lines(ROOT / users[0]) < LONGEST:
                    pytest.fail(f"{short(file)} has no EXAMPLES, and only {users[0]} imports it")


def test_breaks_name_laws_that_exist_and_say_why() -> None:
    for kind in discover.kinds():
        for name, example in discover.examples(kind):
            wrong = sorted(example.breaks.keys() - LAWS)
            assert not wrong, f"{kind}/{name}: breaks names {wrong}, which are no laws"
            reasons = [*example.breaks.values(), *example.shares.values()]
            assert all(len(reason.split()) > 3 for reason in reasons), f"{kind}/{name}: say why"


def test_every_folder_of_nn_is_a_kind_of_parts_or_known_to_be_none() -> None:
    """A folder of parts without EXAMPLES would not be judged, and nobody would hear of it."""
    folders = [path for storey in ("core", "attend", "nn") for path in (PACKAGE / storey).iterdir() if path.is_dir()]
    assert {path.name for path in folders} - {"__pycache__"} - set(discover.kinds()) == NO_KINDS


def test_no_folder_below_the_models_holds_helpers() -> None:
    folders = [path for storey in ("core", "attend", "nn") for path in (PACKAGE / storey).rglob("support")]
    assert not folders, f"{folders}: a helper lives in the file of its user, or beside its users"


@pytest.mark.parametrize("file", EXECUTOR_FILES, ids=short)
def test_executors_never_import_one_another(file: Path) -> None:
    wrong = [name for name in imports(file) if name.startswith("kinformer.attend.executors.")]
    assert not wrong, f"{short(file)} imports {wrong}; executors share core/ and attend/ and nothing of one another"


def test_the_core_holds_what_several_folders_ask_and_says_in_which_order_to_read_it() -> None:
    imported = {file: set(imports(file)) for file in FILES}
    order = (PACKAGE / "core/__init__.py").read_text(encoding="utf-8")
    for file in (file for file in FILES if file.parent == PACKAGE / "core" and file.stem != "__init__"):
        name = f"kinformer.core.{file.stem}."
        by = {
            asks.parent
            for asks, names in imported.items()
            if any(imported_name.startswith(name) for imported_name in names)
        }
        contract = "abc.ABC" in imported[file]
        assert len(by - {file.parent}) > 1 or (contract and by), f"{file.stem} is of {by} alone: it belongs there"
        assert f"`{file.stem}`" in order, f"{file.stem} has no place in the reading order of core/__init__.py"


def test_names_say_what_they_hold() -> None:
    """At most 1 of 100 bound names is a word such as `one`; `python bench/words.py --list 40` says which."""
    vague, total = vague_share(name for path in source_files() for name in bound_names(path))
    assert vague <= MOST * total, f"{vague} of {total} names say nothing"


def test_a_public_class_name_means_one_thing() -> None:
    assert not repeated_classes(source_files(("kinformer",)))


def test_few_imports_stand_inside_functions() -> None:
    """They hide arrows between folders. Optional packages need them, and commands that answer before torch loads."""
    inside = [
        short(file)
        for file in FILES
        if not file.is_relative_to(PACKAGE / "cli")
        for function in ast.walk(tree(file))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert len(inside) <= 38, f"{len(inside)} imports inside functions: {sorted(set(inside))}"


def test_a_file_can_be_read_in_one_sitting() -> None:
    longer = {short(file): count for file in FILES if (count := lines(file)) >= LONGEST}
    assert not longer, f"lines of files that are to be split: {longer}"


def test_annotations_are_real() -> None:
    texts = [short(file) for file in FILES if "__future__.annotations" in imports(file)]
    assert not texts, f"as strings annotations are not checked, in {texts}"


def python(code: str) -> None:
    """Runs code in a fresh interpreter, which this one's imports cannot help."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["kinformer", "kinformer.core.discover", "kinformer.cli.__main__"])
def test_importing_it_does_not_import_torch(module: str) -> None:
    python(f"import sys, {module}; assert 'torch' not in sys.modules and 'numpy' not in sys.modules")


def test_public_names_are_there() -> None:
    for name in dir(kinformer):
        assert getattr(kinformer, name) is not None
    assert {"Softmax", "Causal", "QKV", "Band", "gpt", "merge"} <= set(dir(kinformer))
    with pytest.raises(AttributeError, match="no public name 'Sofmax'; the nearest is 'Softmax'"):
        kinformer.Sofmax  # noqa: B018
    assert not {"ReversibleFunction", "ELUFeatures", "ChunkScore", "RingAttention"} & set(dir(kinformer))
    assert {"DecayingThreshold", "HNSW", "HammingKMeans", "Gate", "Task"} <= set(dir(kinformer))


def test_every_example_is_of_a_public_part() -> None:
    public = set(dir(kinformer))
    for kind in discover.kinds():
        for name, example in discover.examples(kind):
            part = example.make()
            if kind not in ("members", "tasks"):
                assert type(part).__name__ in public, f"{kind}/{name}: {type(part).__name__} is no public name"


def test_the_stub_is_as_the_command_writes_it() -> None:
    assert STUB.read_text(encoding="utf-8") == stub_text(), "write it again: python -m tests.stub"


def test_the_files_of_the_parts_are_read_once() -> None:
    python(
        """
import kinformer
from kinformer.core import discover
read, reads = discover.part_names, []
discover.part_names = lambda: reads.append(1) or read()
assert not hasattr(kinformer, "Sofmax") and not hasattr(kinformer, "Bnad") and "Band" in dir(kinformer)
assert len(reads) == 1
"""
    )


def test_classes_that_constructors_of_public_classes_take_are_public() -> None:
    classes = {node.name for file in FILES for node in tree(file).body if isinstance(node, ast.ClassDef)}
    taken = {
        f"{file.stem}.{name}"
        for file in {PACKAGE.joinpath(*home.split(".")).with_suffix(".py") for home in PUBLIC.values()} - {ATTEND}
        for node in tree(file).body
        if isinstance(node, ast.ClassDef) and node.name in PUBLIC
        for name in classes_taken(node) & classes - PUBLIC.keys() - names_assigned(file)
        if not name.startswith("_")
    }
    assert taken == MADE_BY_THE_LIBRARY


def classes_taken(cls: ast.ClassDef) -> set[str]:
    """The names in annotations of a constructor's arguments, or of a dataclass's fields."""
    methods = [node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    arguments = [argument for method in methods for argument in (*method.args.args, *method.args.kwonlyargs)]
    is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list)
    fields = [node for node in cls.body if is_dataclass and isinstance(node, ast.AnnAssign)]
    annotations = [node.annotation for node in (*arguments, *fields) if node.annotation is not None]
    return {node.id for annotation in annotations for node in ast.walk(annotation) if isinstance(node, ast.Name)}


def names_assigned(file: Path) -> set[str]:
    """Names of a file's own at its top level, such as an alias that has the name of a class elsewhere."""
    targets = [target for node in tree(file).body if isinstance(node, ast.Assign) for target in node.targets]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def test_names_of_kinformer_come_from_layers_below() -> None:
    """import-linter follows no `kf.fit`: it sees an import of `kinformer` alone."""
    wrong = [
        f"{short(file)} uses kinformer.{name} of {home}"
        for file in FILES
        if file.parent != PACKAGE
        for name in public_names_used(tree(file))
        if (home := PUBLIC[name].partition(".")[0]) in LAYERS[: LAYERS.index(file.relative_to(PACKAGE).parts[0])]
    ]
    assert not wrong, wrong


def public_names_used(module: ast.Module) -> set[str]:
    """The names of `kinformer` that a file uses, as `kf.Softmax` or by `from kinformer import Softmax`."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.Import | ast.ImportFrom)]
    aliases = {
        alias.asname or alias.name
        for node in imports
        for alias in node.names
        if isinstance(node, ast.Import) and alias.name == "kinformer"
    }
    used = {
        node.attr
        for node in ast.walk(module)
        if aliases and isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases
    }
    for node in imports:
        if isinstance(node, ast.ImportFrom) and node.module == "kinformer":
            used |= {alias.name for alias in node.names}
    return used - {"__version__"}


def test_a_name_of_a_layer_above_is_seen() -> None:
    assert public_names_used(ast.parse("import kinformer as kf\nkf.fit(model)")) == {"fit"}
    assert public_names_used(ast.parse("from kinformer import fit")) == {"fit"} and PUBLIC["fit"].startswith("lab.")
    assert LAYERS.index("lab") < LAYERS.index("nn") < LAYERS.index("core")


def test_an_executor_of_a_plugin_may_import_from_attend(tmp_path: Path) -> None:
    (tmp_path / "late_executor.py").write_text("from kinformer.attend import explain\n")
    python(
        f"""
import sys
from importlib.metadata import EntryPoint
from kinformer.core import discover
sys.path.append({str(tmp_path)!r})
discover.installed_plugins = lambda: (EntryPoint("late", "late_executor", "kinformer.executors"),)
from kinformer.attend import EXECUTORS
assert "late" in EXECUTORS
"""
    )


def test_a_folder_does_not_hide_a_verb() -> None:
    python("import kinformer.attend, kinformer as kf; assert callable(kf.attend) and kf.attend.__name__ == 'attend'")


def test_generate_is_the_function_however_it_is_reached() -> None:
    imports_of = (
        "from kinformer import generate; import kinformer.decoding.generate; assert callable(generate)",
        "import kinformer; assert callable(kinformer.generate)",
        "import kinformer.decoding.generate; from kinformer import generate; assert callable(generate)",
        "from kinformer.decoding.generate import generate; import kinformer; assert kinformer.generate is generate",
    )
    forget = "import sys; [sys.modules.pop(name) for name in list(sys.modules) if name.split('.')[0] == 'kinformer']"
    python("\n".join(line for line_of in imports_of for line in (forget, line_of)))


def test_every_requirement_is_pinned_exactly() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
    pinned = {re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() for pin in pins}
    project = PROJECT["project"]
    requirements = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    assert {re.split(r"[<>=\[]", line)[0] for line in requirements} <= pinned


def test_the_guide_s_examples_work() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if "EXAMPLES" in block]
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    chosen = names["Alternate"]() & Causal()
    x, pos = torch.randn(1, 2, 5, 4), torch.arange(5)[None]
    read = attend(x, x, x, q_pos=pos[:, None], k_pos=pos[:, None], pattern=chosen, bias=names["Decay"](2))
    plain = attend(x, x, x, q_pos=pos[:, None], k_pos=pos[:, None], pattern=chosen)
    assert read.y.shape == x.shape
    assert torch.equal(read.y[:, :, 0], plain.y[:, :, 0]) and not torch.allclose(read.y[:, :, 2], plain.y[:, :, 2])
    for verdict in kinformer.check(names["EXAMPLES"][0], law=("runs", "chunk", "padding", "peek")):
        assert verdict.end == "holds", verdict.text


def test_paths_in_documents_and_docstrings_exist() -> None:
    """`folder/file.py` in backticks is a file of the package or of the project."""
    documents = [ROOT / name for name in ("README.md", "DESIGN.md", "CONTRIBUTING.md", "bench/README.md")]
    for file in [*documents, *FILES]:
        for path in re.findall(r"`((?:\w+/)+\w+\.py)`", file.read_text(encoding="utf-8")):
            assert (PACKAGE / path).exists() or (ROOT / path).exists(), (
                f"{short(file)} names {path}, which does not exist"
            )
