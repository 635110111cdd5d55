"""`kinformer list`: entries as JSON, and papers with their parts and members."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinformer.cli.__main__ import run
from kinformer.cli.support import catalogue
from kinformer.cli.support.catalogue import list_papers, member_facts
from kinformer.cli.support.citations import Citation, citations, source_citations
from kinformer.cli.support.static_source import member_cost
from kinformer.cli.support.topic_list import kinds_of_data
from kinformer.core.discover import kinds, members, part_files

ROOT = Path(__file__).parents[2]


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["list", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_entry_has_a_kind_a_name_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    entries = listed(capsys)
    assert {entry["kind"] for entry in entries} >= {*kinds(), "losses", "exits", "search", "data"}
    assert all(set(entry) >= {"kind", "name", "sentence"} and entry["sentence"] for entry in entries)
    assert {"kind": "patterns", "name": "band"}.items() <= entries[[e["name"] for e in entries].index("band")].items()


def test_parts_without_examples_and_kinds_of_data_are_listed_without_their_helpers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = {(entry["kind"], entry["name"]) for entry in listed(capsys)}
    assert {("losses", "ppo"), ("exits", "geometric"), ("search", "hnsw"), ("data", "text")} <= names
    assert {entry["name"] for entry in listed(capsys, "data")} == set(kinds_of_data())
    assert {entry["kind"] for entry in listed(capsys, "losses")} == {"losses"}


def test_a_member_has_its_paper_its_change_its_cost_and_its_claims(capsys: pytest.CaptureFixture[str]) -> None:
    by_name = {entry["name"]: entry for entry in listed(capsys, "members")}
    assert sorted(by_name) == sorted(members())
    assert by_name["bigbird"] == {
        "kind": "members",
        "name": "bigbird",
        "sentence": "BigBird: an encoder for long texts with a window, global tokens and random blocks.",
        "paper": "Zaheer et al.",
        "year": 2020,
        "url": "https://arxiv.org/abs/2007.14062",
        "changes": "an encoder for long texts with a window, global tokens and random blocks",
        "cost": "L * block * (window + keys)",
        "claims": ["bigbird_paths"],
    }


def test_every_member_has_a_linked_paper_a_short_change_and_the_cost_that_it_declares() -> None:
    for name, facts in member_facts().items():
        assert re.fullmatch(r"https://\S+", facts["url"]) and 1990 < facts["year"] < 2100 and facts["paper"], name
        assert 0 < len(facts["changes"]) <= 75, f"{name}: shorten the first line of its file after the colon"
        assert facts["cost"] == getattr(members()[name], "cost", None), name


def test_a_claim_is_about_the_members_of_its_paper_and_among_several_about_those_that_it_measures() -> None:
    claims = {name: facts["claims"] for name, facts in member_facts().items()}
    assert claims["gtrxl"] == ["agent_memory", "gtrxl_gate_bias", "gtrxl_identity", "gtrxl_solves"]
    assert claims["collaborative"] == ["collaborative_width"]  # it imports gpt alone, whose paper is another
    assert "decision_transformer_asked" in claims["decision_transformer"]
    assert "decision_transformer_asked" not in claims["behaviour_cloning"]  # of the same paper
    assert "decision_transformer_delayed" in claims["behaviour_cloning"]
    assert claims["gpt"] == claims["lstm"] == []


def test_papers_are_listed_once_the_oldest_first_with_their_parts_and_members(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = listed(capsys, "papers")
    urls = [entry["url"] for entry in entries]
    assert len(set(urls)) == len(urls) > 100 and all(urls)
    years = [entry["year"] for entry in entries]
    assert years == sorted(years)
    longformer = entries[urls.index("https://arxiv.org/abs/2004.05150")]
    assert longformer["authors"] == "Beltagy et al." and longformer["members"] == ["longformer", "longformer_lm"]
    assert {"patterns/band", "patterns/dilated", "mechanisms/global_softmax"} <= set(longformer["parts"])
    assert run(["list", "papers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (
        lines[0].split() == ["year", "authors", "link"]
        and max(len(line) for line in lines if "http" not in line) <= 110
    )
    (place,) = (number for number, line in enumerate(lines) if line.endswith("https://arxiv.org/abs/2004.05150"))
    assert lines[place].startswith("2020  Beltagy et al.  ")
    assert lines[place + 1].rstrip(",").split(", ")[:3] == [  # the width of the terminal ends a line
        "      members/longformer",
        "members/longformer_lm",
        "mechanisms/global_softmax",
    ]


def test_no_source_is_left_out() -> None:
    """Every arXiv ID of a Source line, and of a member's first paragraph, is a listed paper."""
    listed_urls = {entry.citation.url for entry in list_papers()}
    for kind in (*kinds(), "environments", "exits", "losses", "search"):
        for name, file in part_files(kind).items():
            for source in re.findall(r"Source:\s(.*?)(?:\n\n|\"\"\")", file.read_text("utf-8"), re.DOTALL):
                found = {f"https://arxiv.org/abs/{number}" for number in re.findall(r"arXiv:\s*([\d.]+\d)", source)}
                assert found <= listed_urls, (kind, name)


def test_citations_have_authors_a_year_and_a_link_or_none() -> None:
    text = """A part (Le Scao et al., 2022, arXiv:2211.05100) after Al-Rfou et al., 2018, and Cho and Saul, 2009,
    doi:10.1/x.y; the code of (P. Wang, 2020) and Graves, 2016. Later: Al-Rfou et al., 2018,
    https://a.org/b?c=d."""
    assert citations(text) == [
        Citation("Le Scao et al.", 2022, "https://arxiv.org/abs/2211.05100"),
        Citation("Al-Rfou et al.", 2018, "https://a.org/b?c=d"),
        Citation("Cho and Saul", 2009, "https://doi.org/10.1/x.y"),
        Citation("Graves", 2016, ""),
    ]
    doc = "Not Dai et al., 2019.\n\nErrors: none. Source: van den Oord et al., 2017, arXiv:1711.00937.\n\nNor Ba, 2016."
    for text in (doc, doc.replace("Source: ", "Source:\n    ")):
        assert list(source_citations(text)) == [
            Citation("van den Oord et al.", 2017, "https://arxiv.org/abs/1711.00937")
        ]


def test_the_year_of_a_paper_on_arxiv_is_that_of_its_first_version() -> None:
    for citation, *_ in list_papers():
        if number := re.search(r"arxiv\.org/abs/(\d\d)\d\d\.", citation.url):
            assert citation.year == 2000 + int(number[1]), citation


def test_papers_of_environments_are_listed_and_a_part_without_a_paper_stands_under_none() -> None:
    parts = {entry.citation.authors: entry.parts for entry in list_papers()}
    assert parts["Bakker"] == ["environments/t_maze"] and parts["Morad et al."] == ["environments/repeat_previous"]
    assert not {"mechanisms/merged", "tasks/half_easy"} & {part for of_paper in parts.values() for part in of_paper}


def test_a_member_without_an_order_of_cost_has_none(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("@member\ndef mine():\n    pass\n\n\n@member(recipe=1)\ndef other():\n    pass\n")
    assert member_cost(file, "mine") is member_cost(file, "other") is None


def test_facts_of_members_are_collected_only_if_they_are_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "member_facts", lambda: {"gpt": {"cost": "asked"}})
    asked = [entry for entry in listed(capsys) if entry.get("cost") == "asked"]
    assert [entry["name"] for entry in asked] == ["gpt"]
    monkeypatch.setattr(catalogue, "member_facts", lambda: pytest.fail("nobody sees these facts"))
    listed(capsys, "patterns")
    assert run(["list"]) == run(["list", "members"]) == 0


def test_lists_do_not_wait_for_heavy_packages() -> None:
    code = """
import sys
from kinformer.cli.__main__ import run
for words in (["list", "--json"], ["list", "papers"], ["list", "papers", "--json"], ["list", "members"]):
    assert run(words) == 0
print(*{"torch", "numpy", "matplotlib", "jaxtyping"} & set(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
