"""The lineage holds every member, has no cycle, and agrees with the years of the papers."""

import re

import pytest

from kinformer.cli.support.catalogue import member_facts
from kinformer.core.discover import members
from kinformer.pages.atlas.lineage import ancestors_of, children_of, descendants_of, lineage


def test_every_member_is_in_the_lineage_once() -> None:
    assert sorted(lineage()) == sorted(members())


def test_parents_are_members_and_nobody_descends_from_itself() -> None:
    for name, descent in lineage().items():
        assert set(descent.parents) <= lineage().keys(), name
        assert len(set(descent.parents)) == len(descent.parents), name
        assert name not in ancestors_of(name)


def test_no_parent_is_among_the_ancestors_of_another_parent_without_a_reason() -> None:
    """A grandparent is named again only if the paper takes its base from it directly."""
    direct = {
        ("gpt", "transformer"),  # the details of the first decoder
        ("llama", "gpt"),
        ("t5", "transformer"),
        ("depth_adaptive", "transformer"),
    }
    repeated = {
        (name, parent)
        for name, descent in lineage().items()
        for parent in descent.parents
        for other in descent.parents
        if parent in ancestors_of(other)
    }
    assert repeated == direct


def test_a_parent_is_not_younger_than_its_child() -> None:
    year = {name: facts["year"] for name, facts in member_facts().items()}
    for name, descent in lineage().items():
        assert all(year[parent] <= year[name] for parent in descent.parents), name


def test_changes_are_single_sentences_or_two_short_ones() -> None:
    for name, descent in lineage().items():
        assert descent.change.endswith(".") and descent.change[0].isupper(), name
        assert all(len(sentence.split()) <= 25 for sentence in re.split(r"(?<=[.:;]) ", descent.change)), name
    assert len({descent.change for descent in lineage().values()}) == len(lineage())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # the posts and the papers' own abstracts
        ("transformer_xl", {"adaptive_span", "compressive_transformer", "gtrxl", "spalm", "memorizing_transformer"}),
        ("star_transformer", {"star_classifier"}),
        ("gpt_neox", {"llama"}),
        ("rfa", set()),
    ],
)
def test_children_are_those_of_the_papers(name: str, expected: set[str]) -> None:
    assert set(children_of(name)) == expected
    assert expected <= descendants_of(name)


def test_descendants_pass_through_children() -> None:
    assert "longformer_lm" in descendants_of("transformer_xl")
    assert {"al_rfou", "shaw", "transformer"} == ancestors_of("transformer_xl")
    assert descendants_of("transformer") == lineage().keys() - {"transformer", "lstm", "act_rnn", "agent"}
