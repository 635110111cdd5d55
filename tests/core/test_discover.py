"""What a folder holds, what a member is, and keywords out of texts."""

import hashlib
import json
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Literal

import pytest

import kinformer
from kinformer.core import discover
from kinformer.core.did_you_mean import suggest_names
from kinformer.core.discover import MemberRecord, examples, find_member, kinds, member, members, modules
from kinformer.core.keywords import as_texts, describe, parse_keywords, signature, split
from kinformer.lab.errors import UserError
from kinformer.lab.member_choice import find_member_function
from kinformer.laws.support import parts_file


class Model:
    member: MemberRecord


@member
def sample(
    d: int = 8,
    rate: float = 0.5,
    bias: bool = True,
    position: Literal["learned", "rotary"] = "learned",
    windows: tuple[int, ...] | None = None,
    patterns: str | tuple[str, ...] = "Causal()",
    size: int | str = 3,
    bases: Literal[2, 10] = 10,
) -> Model:
    """A sample."""
    return Model()


# What a folder holds ------------------------------------------------------------------------------------------------


def test_a_folder_is_the_registry() -> None:
    registry = modules("patterns")
    files = set(discover.part_files("patterns"))
    assert set(registry) >= files and list(registry) == sorted(registry)
    assert registry["band"].__name__ == "kinformer.nn.patterns.band"


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_can_be_listed(kind: str) -> None:
    pairs = list(examples(kind))
    assert {name for name, _ in pairs} <= set(modules(kind))
    assert len(pairs) == sum(len(getattr(module, "EXAMPLES", ())) for module in modules(kind).values())


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(LookupError, match="there is no kind 'pattern'; the nearest is 'patterns'"):
        modules("pattern")


@pytest.mark.parametrize("name", ["", "core", "lab", "nn/patterns", "cli"])
def test_a_storey_is_no_kind(name: str) -> None:
    with pytest.raises(LookupError, match=f"there is no kind '{name}'"):
        modules(name)


def test_a_module_that_does_not_import_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = discover.importlib.import_module

    def broken(name: str) -> Any:
        return real(name) if name != "kinformer.nn.patterns.band" else 1 / 0

    monkeypatch.setattr(discover.importlib, "import_module", broken)
    with pytest.raises(
        ImportError, match="^kinformer.nn.patterns.band failed to import: ZeroDivisionError: division by zero$"
    ):
        modules("patterns")


def plug(monkeypatch: pytest.MonkeyPatch, name: str, value: str, kind: str = "maps") -> None:
    """A plugin of a kind, and no other."""
    monkeypatch.setattr(discover, "installed_plugins", lambda: (EntryPoint(name, value, f"kinformer.{kind}"),))


def test_a_folder_of_parts_is_a_kind_and_other_folders_are_none() -> None:
    assert {"patterns", "mechanisms", "members"} <= set(kinds())
    others = {"core", "cli", "data", "executors", "laws", "train"}
    assert others <= {path.name for path in discover.PACKAGE.rglob("*") if path.is_dir()}
    assert not others & set(kinds())


def test_a_group_of_plugins_is_a_kind_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, "average", "json.decoder", "filters")
    assert "filters" in kinds() and list(modules("filters")) == ["average"]
    plug(monkeypatch, "mine", "json.decoder", "laws")
    assert "laws" not in kinds() and "mine" in modules("laws") and "support" not in modules("laws")


def test_an_example_is_a_function_a_class_an_instance_or_an_example() -> None:
    from kinformer.core.example import Example

    assert Example.from_entry(Model).make is Model and isinstance(Example.from_entry(lambda: 3).make(), int)
    assert Example.from_entry((1, 2)).make() == (1, 2)
    declared = Example(Model, breaks={"peek": "why"})
    assert Example.from_entry(declared) is declared


def test_a_plugin_stands_beside_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, "extra", "json.decoder")
    assert modules("maps")["extra"] is json.decoder


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        (
            "extra",
            "json:loads",
            "a plugin of maps is left out: json:loads is an object of type function, expected a module",
        ),
        ("extra", "no_such_module", "a plugin of maps is left out: no_such_module failed to import: ModuleNotFoundErr"),
        ("elu", "json", "a plugin of maps is left out: json has the name 'elu', which another part of maps has"),
    ],
)
def test_a_faulty_plugin_is_named_in_a_warning_and_left_out(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    plug(monkeypatch, name, value)
    with pytest.warns(UserWarning, match=f"^{says}") as caught:
        registry = modules("maps")
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    assert "extra" not in registry and registry["elu"].__name__ == "kinformer.nn.maps.elu"


def test_a_member_is_found_beside_a_plugin_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    plug(monkeypatch, "broken", "no_such_module", "members")
    with pytest.warns(UserWarning, match="a plugin of members is left out: no_such_module"):
        assert find_member("gpt") is not None


PLUGIN = """
from kinformer.core.discover import member
from kinformer.core.pattern import Pattern

class Diagonal(Pattern):
    def __call__(self, b, h, q, k):
        return q == k

class _Hidden(Diagonal):
    pass

@member
def plugged(d: int = 8):
    ...
"""


@pytest.mark.parametrize("value", ["plugged_package.parts", "plugged_package:parts"])
def test_parts_and_members_of_a_plugin_are_public(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str) -> None:
    folder = tmp_path / "plugged_package"
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import parts" if ":" in value else "")
    (folder / "parts.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    plug(monkeypatch, "extra", value, "members")
    try:
        names = discover.plugin_names()
        assert set(names) == {"Diagonal", "plugged"}
        assert names["plugged"].origin.file is None, "it is a plugin's and no file of a user"
    finally:
        for name in ("plugged_package", "plugged_package.parts"):
            sys.modules.pop(name, None)


def test_kinformer_has_the_names_of_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kinformer, "_plugin_parts", lambda: {"PluggedPart": Model, "Softmax": Model})
    try:
        assert kinformer.PluggedPart is Model and "PluggedPart" in dir(kinformer)
        assert kinformer.Softmax is not Model, "a plugin does not replace a part of the library"
    finally:
        vars(kinformer).pop("PluggedPart", None)


def test_discovery_and_its_import_bring_in_no_torch() -> None:
    code = "import sys; from kinformer.core.discover import kinds, member; kinds(); sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


# Members ------------------------------------------------------------------------------------------------------------


def test_a_call_records_every_keyword() -> None:
    record = sample(16, position="rotary", windows=(1, 2), rate=1).member
    assert record.name == "sample"
    assert record.keywords == {
        "d": 16,
        "rate": 1,
        "bias": True,
        "position": "rotary",
        "windows": (1, 2),
        "patterns": "Causal()",
        "size": 3,
        "bases": 10,
    }
    assert record.file == __file__ and record.sha256 == hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    assert sample.__doc__ == "A sample." and sample.__name__ == "sample"


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"windos": (1,)}, "the member 'sample' has no keyword 'windos'; the nearest is 'windows'"),
        ({"d": "8"}, "the keyword 'd' of 'sample' must be int, got '8'"),
        ({"d": True}, "the keyword 'd' of 'sample' must be int, got True"),
        ({"d": 8.0}, "the keyword 'd' of 'sample' must be int, got 8.0"),
        ({"d": None}, "the keyword 'd' of 'sample' must be int, got None"),
        ({"rate": True}, "must be float, got True"),
        ({"bias": 1}, "must be bool, got 1"),
        ({"position": "rotery"}, "must be 'learned' | 'rotary', got 'rotery'"),
        ({"windows": [1, 2]}, "must be tuple[int, ...] | None, got [1, 2]"),
        ({"windows": (1, 2.5)}, "must be tuple[int, ...] | None, got (1, 2.5)"),
        ({"bases": 10.0}, "must be 2 | 10, got 10.0"),
    ],
)
def test_a_wrong_keyword_is_said_in_one_line(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        sample(**keywords)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_too_many_or_twice() -> None:
    with pytest.raises(TypeError, match="'sample' got 9 positional arguments, expected at most 8"):
        sample(*range(9))
    with pytest.raises(TypeError, match="the keyword 'd' is given twice"):
        sample(8, d=8)


def declare(text: str) -> None:
    exec(
        f"from kinformer.core.discover import member\nfrom typing import Any\n@member\ndef f({text}): ...",
        {"__name__": "x"},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("d: int", "the keyword 'd' of the member 'f' has no default"),
        ("d=3", "the keyword 'd' of the member 'f' has no annotation; annotate it with int, float"),
        ("d: list[int] = ()", r"has the annotation list\[int\]; annotate it with"),
        ("d: Any = 3", "has .*Any; annotate it with"),
        ("d: tuple[int, int] = (1, 2)", r"has the annotation tuple\[int, int\]; annotate it with"),
        ("d: tuple[tuple[int, ...], ...] = ()", "annotate it with"),
        ("d: int = None", "'d' of the member 'f' is int, but its default is None"),
        ("d: int = 2.0", "is int, but its default is 2.0"),
        ("*d: int", "'d' of the member 'f' must be a named keyword"),
        ("**d: int", "'d' of the member 'f' must be a named keyword"),
        ("d: int = 1, /", "'d' of the member 'f' must be a named keyword"),
        ("d: 'Nowhere' = 1", "an annotation of the member 'f' cannot be evaluated: name 'Nowhere' is not defined"),
    ],
)
def test_a_signature_that_is_no_config_is_refused_where_it_is_written(text: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        declare(text)


def test_the_members_of_the_folder_are_found_and_have_no_file() -> None:
    assert "gpt" in members()
    assert find_member("gpt") is members()["gpt"]
    record = find_member("gpt")(d=16, depth=1, heads=2).member
    assert record.name == "gpt" and record.file is None and record.sha256 is None


def test_an_unknown_member_names_the_nearest() -> None:
    with pytest.raises(LookupError, match="there is no member 'gtp'; the nearest is 'gpt'"):
        find_member("gtp")


OWN = """
from __future__ import annotations
from kinformer.core.discover import member

class Model:
    pass

@member
def mine(d: int | None = None, name: str = "x"):
    return Model()

def plain(d: int = 1):
    return Model()
"""


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "own file.py"
    file.write_text(OWN)
    record = find_member(f"{file}:mine")(d=3).member
    assert record == MemberRecord("mine", {"d": 3, "name": "x"}, str(file), hashlib.sha256(OWN.encode()).hexdigest())
    file.write_text(OWN.replace('"x"', '"y"'))
    reloaded = find_member(f"{file}:mine")().member
    assert reloaded.keywords["name"] == "y" and reloaded.sha256 != record.sha256
    for name, message in [
        ("mini", "has no member 'mini'; the nearest is 'mine'"),
        ("plain", "'plain' in .* is not a member; put @member"),
        ("Path", "has no member 'Path'"),
    ]:
        with pytest.raises(LookupError, match=message):
            find_member(f"{file}:{name}")
    with pytest.raises(LookupError, match="there is no file or folder .*none.py"):
        find_member(f"{tmp_path}/none.py:mine")
    file.write_text("1 / 0")
    before = set(sys.modules)
    with pytest.raises(ImportError, match="own file.py failed to import: ZeroDivisionError"):
        find_member(f"{file}:mine")
    assert set(sys.modules) == before, "a module that failed is not left behind"


@pytest.mark.parametrize("kind", kinds())
def test_a_file_of_the_library_is_the_module_that_the_library_knows(kind: str) -> None:
    """A second import of memories/compressive.py made a Compression that StridedConv is none of."""
    module = next(found_module for found_module in modules(kind).values() if hasattr(found_module, "EXAMPLES"))
    assert parts_file.read_parts(module.__file__).module is module


def test_every_example_of_the_memories_is_built_by_the_path_of_its_file() -> None:
    folder = discover.PACKAGE / "nn" / "memories"
    assert all(
        len(parts_file.read_parts(str(folder / f"{name}.py")).examples) > 1 for name in ("compressive", "compression")
    )


def test_a_member_of_the_library_by_its_path_is_that_member() -> None:
    file = discover.PACKAGE / "members" / "gpt.py"
    assert find_member(f"{file}:gpt") is members()["gpt"]
    with pytest.raises(UserError, match=r"gpt.py is a file; add a member in it, such as .*gpt.py:gpt \(it has gpt\)"):
        find_member_function(str(file))


# Texts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d=12", {"d": 12}),
        ("rate=1e-3", {"rate": 1e-3}),
        ("rate=2", {"rate": 2.0}),
        ("bias=false", {"bias": False}),
        ("bias=On", {"bias": True}),
        ("position=rotary", {"position": "rotary"}),
        ("bases=2", {"bases": 2}),
        ("windows=none", {"windows": None}),
        ("windows=1,2,3", {"windows": (1, 2, 3)}),
        ("windows=(1, 2)", {"windows": (1, 2)}),
        ("windows=4", {"windows": (4,)}),
        ("windows=4,", {"windows": (4,)}),
        ("windows=()", {"windows": ()}),
        ("patterns=Band(4, 4)", {"patterns": "Band(4, 4)"}),
        ("patterns=Band(4, 4), Full()", {"patterns": ("Band(4, 4)", "Full()")}),
        ("patterns=(Band(4) & Full()) | (Full() & Band(2))", {"patterns": "(Band(4) & Full()) | (Full() & Band(2))"}),
        ("patterns=((Band(4) & Full()) | Band(2), Full())", {"patterns": ("(Band(4) & Full()) | Band(2)", "Full()")}),
        ("patterns=a=b", {"patterns": "a=b"}),
        ("size=7", {"size": 7}),
        ("size=big", {"size": "big"}),
        (" d = 3 ", {"d": 3}),
    ],
)
def test_a_text_is_converted_by_its_annotation(text: str, expected: dict[str, Any]) -> None:
    keywords = parse_keywords(sample, [text])
    assert keywords == expected and {name: type(value) for name, value in keywords.items()} == {
        name: type(value) for name, value in expected.items()
    }
    assert sample(**keywords).member.keywords | expected == sample(**keywords).member.keywords


def test_keywords_are_written_as_they_are_read() -> None:
    """The defaults of all members, and tuples of one and of several."""
    for name, function in members().items():
        defaults = {name_of: parameter.default for name_of, parameter in signature(function).parameters.items()}
        assert parse_keywords(function, as_texts(defaults)) == defaults, name
    for keywords in ({"windows": (1,), "patterns": ("Band(4, 4)",)}, {"patterns": ("Band(4) | Full()", "Full()")}):
        assert parse_keywords(sample, as_texts(keywords)) == keywords


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["dd=3"], "the member 'sample' has no keyword 'dd'; the nearest is 'd'"),
        (["zzz=3"], "has no keyword 'zzz'; there are bases, bias, d, patterns"),
        (["d=x"], "the keyword 'd' of 'sample' must be int, got 'x'"),
        (["d="], "must be int, got ''"),
        (["bias=1"], "must be bool, got '1'"),
        (["windows=1,x"], "must be tuple[int, ...] | None, got '1,x'"),
        (["position=rotery"], "must be 'learned' | 'rotary', got 'rotery'; the nearest is 'rotary'"),
        (["position=mine"], "got 'mine'; to use a part of your own, write a member that composes it (FILE.py:NAME)"),
        (["d"], "'d' is not a keyword; write name=value"),
        (["=3"], "'=3' is not a keyword; write name=value"),
        (["d=1", "d=2"], "the keyword 'd' is given twice"),
    ],
)
def test_a_wrong_text_is_said_in_one_line(texts: list[str], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        parse_keywords(sample, texts)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_text_is_split_outside_brackets() -> None:
    assert split("f(1, 2), [3, 4],5") == ["f(1, 2)", "[3, 4]", "5"]
    assert split("") == [""]


def test_annotations_are_described_as_one_writes_them() -> None:
    assert describe(tuple[int, ...] | None) == "tuple[int, ...] | None"
    assert describe(tuple[Literal["a", "b"], ...]) == "tuple['a' | 'b', ...]"
    assert describe(Literal["a", 1]) == "'a' | 1"
    assert describe(float) == "float"


def test_a_member_whose_name_is_near_no_other_is_given_none() -> None:
    with pytest.raises(LookupError, match="there is no member 'Foo-v0'; `kinformer list members` lists them all"):
        find_member("Foo-v0")
    suggestions = suggest_names("Foo-v0", ["Acrobot-v1", "CartPole-v1"])
    assert suggestions == "; there are Acrobot-v1, CartPole-v1"
