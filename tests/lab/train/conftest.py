"""Fixtures of the tests of training."""

import pytest

from kinformer.checkpoint import atomic_files as files


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies loses nothing that it wrote; what a machine that dies loses is not tried here."""
    monkeypatch.setattr(files.os, "fsync", lambda handle: None)
