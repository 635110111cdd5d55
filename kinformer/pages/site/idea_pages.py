"""Pages of ideas in the documentation: text, figures, costs, and links to parts and other ideas."""

from collections.abc import Sequence

from kinformer.pages.idea import EXAMPLE_NOTE, SECTIONS, Idea, all_ideas, alternatives, followers
from kinformer.pages.idea_figures import idea_figures
from kinformer.pages.pictures.support.figure_html import figure_html
from kinformer.pages.site.kind_pages import link_to_file
from kinformer.pages.site.markdown import SitePlace, code_block, prose, relative, table, with_addresses

PAGE = "ideas.md"


def page_of_idea(name: str) -> str:
    """Return the path of an idea's page.

    name: the name of the idea, such as "lsh".
    """
    return f"ideas/{name}.md"


def idea_pages() -> dict[str, str]:
    """Return the list of all ideas and the page of each idea, by path."""
    ideas = all_ideas()
    rows = [(_link(idea, PAGE), idea.summary, prose(", ".join(idea.names))) for idea in ideas.values()]
    intro = (
        "Each idea has one page: problem, equation, pictures, a worked example over the same eight tokens, reasons, "
        "cost, limits and questions. `kinformer show NAME` prints the page."
    )
    listed = f"# Ideas\n\n{intro}\n\n{table(('idea', 'problem', 'other names'), rows)}\n"
    return {PAGE: listed} | {page_of_idea(name): idea_page(idea) for name, idea in ideas.items()}


def idea_page(idea: Idea) -> str:
    """Return the page of an idea in Markdown.

    idea: the idea.
    """
    here = page_of_idea(idea.name)
    blocks = [f"# {prose(idea.title)}", *_links("Read before", idea.before, here)]
    for title in SECTIONS:
        text = idea.sections[title]
        blocks += [f"## {title}", *([EXAMPLE_NOTE] if title == "Worked example" else [])]
        blocks.append(with_addresses(text) if title == "Sources" else text)
        if title == "Picture":
            blocks += map(figure_html, idea_figures(idea))
        if title == "Cost":
            blocks.append(_cost_table(idea))
    places = ", ".join(link_to_file(place, here) for place in idea.places)
    blocks += ["## Members and parts", f"{places}."]
    if idea.commands:
        blocks.append(code_block("\n".join(idea.commands), "sh"))
    blocks += [*_links("Builds on it", followers(idea), here), *_links("Compare", alternatives(idea), here)]
    return "\n\n".join(blocks) + "\n"


def _links(words: str, names: Sequence[str], page: str) -> list[str]:
    """A line of links to ideas; no line without ideas."""
    links = [_link(all_ideas()[name], page) for name in names if name in all_ideas()]
    return [f"{words}: {', '.join(links)}."] if links else []


def _link(idea: Idea, page: str) -> str:
    return f"[{prose(idea.title)}]({relative(SitePlace(page_of_idea(idea.name)), page)})"


def _cost_table(idea: Idea) -> str:
    cost = idea.cost
    lengths, *rows = zip(*cost.texts(), strict=True)
    headings = (cost.unit, *(f"{length} tokens" for length in lengths))
    rows = [(name, *row) for name, row in zip(("this idea", "softmax attention"), rows, strict=True)]
    layers = f"Layers until all positions connect: {prose(cost.layers)}."
    return f"{table(headings, rows)}\n\nSizes: {prose(cost.where)}.\n\n{layers}"
