"""Specs of data: the reader, the place of the data, its options, and the tokenizer of a model for texts."""

from typing import Any

import pytest

from kinformer.lab.data.images import ImageData
from kinformer.lab.data.resolve import resolve
from kinformer.lab.data.support.data_readers import data_readers, form_of
from kinformer.lab.data.text import TextData
from tests.lab.data.plugins import add_data_plugins, reader_module

TYPED_FOR_CHECKERS = """
from typing import TYPE_CHECKING

from kinformer.lab.data.data import Data

if TYPE_CHECKING:
    from elsewhere import Number

class Note(Data):
    noun, serves = "a note", ()

    def __init__(self, *words):
        self.words = words

    def stream(self, *sizes):
        raise NotImplementedError

    def describe_sample(self, *sizes):
        raise NotImplementedError

def read(where: str, *, size: "Number" = 3) -> "Number":
    return Note(where, size)

FORM = "checked=PATH"
"""
WITHOUT_TOKENS = ("images=a", "offline=a", "series=a.csv", "task=parity", "env=CartPole-v1", "sets=maximum")


def test_a_spec_is_taken_apart_and_nothing_is_read() -> None:
    source = resolve("images=/no/such/folder")
    assert (source.name, source.where, source.kind) == ("images", "/no/such/folder", ImageData)
    assert source.options == {}
    text = resolve("text=a,b.txt,documents=blank", tokenizer="/model")
    assert (text.where, text.kind) == ("a,b.txt", TextData)
    assert text.options == {"documents": "blank", "tokenizer": "/model"}
    assert resolve("text=a,tokenizer=bytes", tokenizer="/model").options == {"tokenizer": "bytes"}


@pytest.mark.parametrize("spec", WITHOUT_TOKENS)
def test_a_reader_without_tokens_is_given_no_tokenizer(spec: str) -> None:
    assert resolve(spec, tokenizer="/model").options == {}


@pytest.mark.parametrize("spec", ["text=a", "pairs=a", "labelled=a", "multitask=a"])
def test_a_reader_of_texts_is_given_the_tokenizer(spec: str) -> None:
    assert resolve(spec, tokenizer="/model").options == {"tokenizer": "/model"}


def test_an_option_that_is_unknown_or_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="text= has no option 'documnts'; the nearest is 'documents'"):
        resolve("text=a,documnts=blank").read()
    with pytest.raises(ValueError, match="valid is given twice, as an option and in 'text=a,valid=b'; give it once"):
        resolve("text=a,valid=b").read(valid="c")


def test_a_plugin_without_a_form_is_left_out_and_others_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    add_data_plugins(monkeypatch, formless=reader_module("formless", "SERVES = ('images',)\ndef read(where): ..."))
    line = '^the data plugin formless is ignored: it has no FORM; add FORM = "formless=PATH"$'
    with pytest.warns(UserWarning, match=line):
        assert resolve("text=a").kind is TextData
    with pytest.warns(UserWarning, match=line):
        assert "formless" not in data_readers()
    with pytest.warns(UserWarning, match=line):
        assert form_of("images") == "images=FOLDER"


def test_a_reader_whose_annotations_are_for_type_checkers_declares_no_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    add_data_plugins(monkeypatch, checked=reader_module("checked", TYPED_FOR_CHECKERS))
    source = resolve("checked=a,size=4", tokenizer="/model")
    data: Any = source.read()
    assert source.kind is None and data.words == ("a", "4")
