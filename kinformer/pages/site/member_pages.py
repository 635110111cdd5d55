"""Reference pages of members: a table of all members, and a page for each file of them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import kinformer
from kinformer.core.discover import modules
from kinformer.core.keyword_conditions import Needs
from kinformer.lab.claims.support.claim_report import measured_verdict
from kinformer.pages.idea import ideas_of
from kinformer.pages.module_docs import first_sentence
from kinformer.pages.order_of_cost import formula
from kinformer.pages.site.entries import entry
from kinformer.pages.site.idea_pages import page_of_idea
from kinformer.pages.site.kind_pages import page_of_kind, page_of_member, public_names_of
from kinformer.pages.site.markdown import SitePlace, code_block, prose, relative, table

PAGE = "reference/members.md"
HEADINGS = ("member", "paper", "year", "what it changes", "order of cost", "claim")


def member_row(facts: Mapping[str, Any], address: str) -> tuple[str, ...]:
    """Return the row of a member in a table with `HEADINGS`.

    facts: name, paper, year, url, changes, cost and claims of the member, as the catalogue gives them.
    address: the address that the name links to.

    Each claim stands with the verdict of the report in the package.
    """
    paper = f"[{facts['paper']}]({facts['url']})" if facts["url"] else facts["paper"]
    claims = ", ".join(f"`{claim}`: {measured_verdict(claim)}" for claim in facts["claims"])
    name = f"[`{facts['name']}`]({address})"
    return name, paper, str(facts["year"]), facts["changes"], formula(facts["cost"]), claims


def member_pages(facts: Sequence[Mapping[str, Any]], topics: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, str]:
    """Return the table of all members and the page of each member's file, by path.

    facts: name, paper, year, url, changes, cost and claims of each member.
    topics: the topics that each member belongs to, each as its name and its anchor, by "members/NAME".
    """
    by_name = {entry["name"]: entry for entry in facts}
    rows = [member_row(entry, relative(SitePlace(page_of_member(entry["name"])), PAGE)) for entry in facts]
    intro = (
        "A member is a complete named model. In the order of cost, L is the number of tokens in a row, and other names "
        "are keywords of the member. `kinformer claim NAME` measures a claim. Each verdict is that of our measurement."
    )
    pages = {PAGE: f"# Members\n\n{intro}\n\n{table(HEADINGS, rows)}\n"}
    for file, module in modules("members").items():
        says = first_sentence(module)
        blocks = [f"# {file}", prose(says), *_facts(by_name.get(file), topics.get(f"members/{file}", ()))]
        for name in public_names_of(module):
            function = getattr(kinformer, name)
            blocks += [entry(name, function), *_conditions(function.needs)]
        commands = [f"kinformer show {file}", f"kinformer cost {file}"]
        pages[page_of_member(file)] = (
            "\n\n".join([*blocks, "**Commands**", code_block("\n".join(commands), "sh")]) + "\n"
        )
    return pages


def _facts(facts: Mapping[str, Any] | None, topics: Iterable[tuple[str, str]]) -> list[str]:
    """The paper, the order of cost, the claims and the topics of a member, as a list."""
    if facts is None:
        return []
    here = page_of_member(str(facts["name"]))
    claims = [
        f"[`{claim}`]({relative(SitePlace(page_of_kind('claims'), claim), here)}): {measured_verdict(claim)}"
        for claim in facts.get("claims", ())
    ]
    linked_topics = [f"[{topic}]({relative(SitePlace('reference/topics.md', slug), here)})" for topic, slug in topics]
    ideas = [
        f"[{prose(idea.title)}]({relative(SitePlace(page_of_idea(idea.name)), here)})"
        for idea in ideas_of(f"members/{facts['name']}")
    ]
    lines = [
        f"- Ideas: {', '.join(ideas)}" if ideas else "",
        f"- Paper: [{facts['paper']}, {facts['year']}]({facts['url']})"
        if facts["url"]
        else f"- Paper: {facts['paper']}",
        f"- Order of cost: {prose(formula(facts['cost']))}",
        f"- Claims: {', '.join(claims)}" if claims else "",
        f"- Topics: {', '.join(linked_topics)}" if linked_topics else "",
    ]
    return ["\n".join(line for line in lines if line)]


def _conditions(needs: Needs) -> list[str]:
    """The conditions under which keywords have an effect."""
    rows = [f"- `{keyword}` needs `{condition}`" for keyword, condition in needs.items()]
    return ["**Keywords that need other keywords**", "\n".join(rows)] if rows else []
