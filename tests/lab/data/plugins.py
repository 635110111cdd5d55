"""Readers of plugins, as entry points name modules."""

import types

import pytest

from kinformer.core import discover


def add_data_plugins(monkeypatch: pytest.MonkeyPatch, **readers: types.ModuleType) -> None:
    """Install modules as plugins of the kind `data`, by name."""
    load = discover.load_plugins

    def load_plugins(kind: str, reserved: object = ()) -> dict[str, types.ModuleType]:
        return load(kind) | (readers if kind == "data" else {})

    monkeypatch.setattr(discover, "load_plugins", load_plugins)


def reader_module(name: str, source: str) -> types.ModuleType:
    """A module with this source."""
    module = types.ModuleType(name)
    exec(source, vars(module))
    return module
