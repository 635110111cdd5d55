"""Cards of members: the same facts about every member, as data and as HTML."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import torch

from kinformer.core.discover import modules
from kinformer.core.example import Example
from kinformer.core.keywords import signature
from kinformer.core.quote import shorten
from kinformer.lab.advise.arena_scores import arena_tasks
from kinformer.lab.advise.estimates import table
from kinformer.lab.advise.member_costs import LENGTHS, member_costs
from kinformer.lab.byte_units import size
from kinformer.lab.claims.support.claim_report import NOT_MEASURED, ClaimReport
from kinformer.lab.member_choice import parse_member
from kinformer.pages.atlas.cost_symbols import explain_symbols
from kinformer.pages.atlas.lineage import children_of, descendants_of, lineage
from kinformer.pages.order_of_cost import formula
from kinformer.pages.pictures.support.all_pictures import pictures
from kinformer.pages.pictures.support.picture_panels import Picture, kinds_in
from kinformer.pages.pictures.support.svg_picture import panel_svg
from kinformer.pages.plots import colour

READS = {  # kinds of data that models read, and the task of such a model
    "text": "text; predicts the next token",
    "masked": "text; fills in masked tokens",
    "pairs": "pairs of texts; translates the first into the second",
    "labelled": "labelled texts; classifies a text",
    "multitask": "labelled texts of several tasks; classifies a text",
    "images": "pictures; generates a picture value by value",
    "series": "time series; forecasts the next rows",
    "sets": "sets of vectors; predicts a number or a class of a set",
    "environments": "observations of an environment; learns to act (PPO)",
    "trajectories": "recorded episodes; predicts actions",
}
SAME = 0.05  # largest relative difference of two counts that are called about the same
PANELS = 3  # panels of a drawing on a card
NO_BREAK = "\u00a0"
NO_STATE = {  # reasons why models of a kind of data have no decoding state
    "masked": "it reads a whole text at once and fills in masked tokens",
    "labelled": "it reads a whole text at once and classifies it",
    "multitask": "it reads a whole text at once and classifies it",
    "sets": "it reads a whole set at once",
    "series": "it forecasts all rows in one pass",
    "trajectories": "it reads the last steps again for each action",
}
NOT_DRAWN = "No drawing: a state of fixed size holds the past, so a query reads no single keys."


class MemberCard(NamedTuple):
    """Facts about a member for its card.

    name: name of the member.
    sentence: one sentence about it.
    authors, year, url: its paper.
    reads: kind of data that it reads.
    cost: order of its cost, in the length of a row and its keywords.
    claims: names of the claims about it.
    command: a command that trains it.
    parameters: number of parameters of the default config.
    lengths: numbers of tokens of a row; the next four mappings have these keys.
    state: bytes of the decoding state of a row; None without a state.
    flops: additions and multiplications of a forward pass per token; None if unknown.
    keys: mean number of keys of a query in a head; None if positions do not decide which keys it reads.
    extrapolated: lengths at which `flops` follow from shorter rows.
    defaults: its keywords with their defaults, such as "d=128".
    topics: words of the field that lead to it.
    """

    name: str
    sentence: str
    authors: str
    year: int
    url: str
    reads: str
    cost: str
    claims: Sequence[str]
    command: str
    parameters: int
    lengths: Sequence[int]
    state: Mapping[int, int | None]
    flops: Mapping[int, int | None]
    keys: Mapping[int, float | None]
    extrapolated: Sequence[int]
    defaults: Sequence[str]
    topics: Sequence[str]

    def at_long(self, values: Mapping[int, Any]) -> Any:
        """Return the value at the longest row, or None for a member that fixes the length of its rows."""
        return values.get(max(LENGTHS))


def make_card(entry: Mapping[str, Any], command: str, topics: Sequence[str]) -> MemberCard:
    """Return the card of a member.

    entry: name, sentence and facts, as `kinformer list members --json` prints them.
    command: a command that trains the member.
    topics: words of the field that lead to it.
    """
    name = entry["name"]
    costs = member_costs()["members"][name]
    own = costs.get("own_length")
    by_length = {
        field: {int(length): value for length, value in costs[field].items()} for field in ("state", "flops", "keys")
    }
    function = parse_member(name, ()).function
    defaults = [f"{key}={parameter.default!r}" for key, parameter in signature(function).parameters.items()]
    return MemberCard(
        name=name,
        sentence=entry["sentence"],
        authors=entry["paper"],
        year=entry["year"],
        url=entry["url"],
        reads=costs["reads"],
        cost=entry["cost"],
        claims=entry["claims"],
        command=command,
        parameters=costs["parameters"],
        lengths=LENGTHS if own is None else (own,),
        extrapolated=costs["extrapolated"],
        defaults=defaults,
        topics=topics,
        **by_length,
    )


def card_data(card: MemberCard) -> dict[str, Any]:
    """Return the values of a card that the page sorts, searches and compares.

    card: the card.
    """
    descent = lineage()[card.name]
    return {
        "name": card.name,
        "sentence": card.sentence,
        "year": card.year,
        "family": descent.family,
        "reads": card.reads,
        "topics": list(card.topics),
        "parents": list(descent.parents),
        "children": children_of(card.name),
        "parameters": card.parameters,
        "flops": card.at_long(card.flops),
        "isEstimated": max(LENGTHS) in card.extrapolated,
        "state": card.at_long(card.state),
        "keys": card.at_long(card.keys),
    }


def card_html(card: MemberCard, reports: Mapping[str, ClaimReport], ideas: Mapping[str, str]) -> str:
    """Return the card of a member as an HTML article.

    card: the card.
    reports: reports of claims by name.
    ideas: titles of the pages of ideas about the member, by their ids.
    """
    paper = f"{escape(card.authors)}, {card.year}"
    linked = f'<a href="{escape(card.url)}">{paper}</a>' if card.url else paper
    first, rest = _facts(card), _further_facts(card, reports, ideas)
    link = f'<h3><a href="#member/{card.name}">{card.name}</a></h3>'
    head = f'{link}\n<p class="paper">{linked}</p>\n<p class="says">{escape(card.sentence)}</p>\n'
    lists = f"{_fact_list(first, 'facts')}{_fact_list(rest, 'facts more')}"
    body = f"{head}{draw_member(card.name)}{lists}"
    return f'<article class="card" id="member/{card.name}" data-name="{card.name}">\n{body}</article>\n'


def _fact_list(facts: Iterable[tuple[str, str]], kind: str) -> str:
    pairs = "".join(_fact(*pair) for pair in facts)
    return f'<dl class="{kind}">{pairs}</dl>\n'


def _fact(term: str, value: str) -> str:
    return f"<div><dt>{term}</dt><dd>{value}</dd></div>\n"


def _facts(card: MemberCard) -> Iterator[tuple[str, str]]:
    yield "reads", escape(READS.get(card.reads, card.reads))
    symbols = "; ".join(f"{name}: {text}" for name, text in explain_symbols(card.name, card.cost).items())
    yield "order of cost", f'<code>{escape(formula(card.cost))}</code><div class="soft">{escape(symbols)}</div>'
    notes = {length: "*" for length in card.extrapolated}
    yield "FLOPs per token", _by_length(card.flops, write_count, "not counted", notes)
    reason = f": {NO_STATE[card.reads]}" if card.reads in NO_STATE else ""
    yield "decoding state", _by_length(card.state, size, f"none{reason}")


def _further_facts(
    card: MemberCard, reports: Mapping[str, ClaimReport], ideas: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    yield "keys per query", _by_length(card.keys, write_number, "no set of keys that positions fix")
    yield "growth of the cost", _growth(card)
    yield "parameters", f"{card.parameters:,} with the default config"
    descent = lineage()[card.name]
    yield "family", escape(descent.family)
    yield "descends from", _links(descent.parents) or "no other member"
    yield "what it changes", escape(descent.change)
    children = children_of(card.name)
    further = sorted(descendants_of(card.name) - {*children})
    later = f"; through them {_links(further)}" if further else ""
    yield "descendants", f"{_links(children)}{later}" if children else "none among the members"
    yield "in Python", f"<code>kf.{card.name}()</code> after <code>import kinformer as kf</code>"
    yield "keywords", f"<code>{escape(', '.join(shorten(text) for text in card.defaults))}</code>"
    yield "train it", f"<code>{escape(card.command)}</code>"
    yield "claims", _claims(card.claims, reports)
    yield "measured", " ".join(_measured(card.name)) or "no time or quality of it is measured yet"
    pages = ", ".join(f'<a href="#idea/{key}">{escape(title)}</a>' for key, title in ideas.items())
    yield "ideas", pages or "no page yet"
    yield "read more", f"<code>kinformer show {card.name}</code>, <code>kinformer cost {card.name}</code>"


def write_count(count: float) -> str:
    """Return a count of operations with three digits and a unit: "4.65 M".

    count: the count.
    """
    for unit, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= 0.9995 * unit:  # it is written as 1 of this unit, not as 1,000 of the next
            return f"{count / unit:.3g} {letter}" if count < 999.5 * unit else f"{count / unit:,.0f} {letter}"
    return f"{count:.3g}"


def write_number(value: float) -> str:
    """Return a number with at most one digit after the point.

    value: the number.
    """
    return f"{value:,.1f}".removesuffix(".0")


def _by_length(values: Mapping[int, Any], write: Any, otherwise: str, notes: Mapping[int, str] | None = None) -> str:
    """Return values at row lengths: "4.65 M at 1,024 tokens, 44 M at 16,384"."""
    if all(value is None for value in values.values()):
        return otherwise
    texts = []
    for length, value in values.items():
        text = "not counted" if value is None else write(value).replace(" ", NO_BREAK)
        texts.append(f"{text}{(notes or {}).get(length, '')} at {length:,}")
    return ", ".join([f"{texts[0]} tokens", *texts[1:]])


def _growth(card: MemberCard) -> str:
    if len(card.lengths) == 1:
        return f"the config fixes the length of a row: {card.lengths[0]:,} positions"
    short, long = (card.flops[length] for length in (min(LENGTHS), max(LENGTHS)))
    if not short or not long:
        return "unknown: the FLOPs are not counted"
    difference = abs(long / short - 1)
    same = "about the same FLOPs as" if difference else "the same FLOPs as"
    ratio = f"{long / short:.2g} times the FLOPs of" if difference >= SAME else same
    return f"per token, a row of {max(LENGTHS):,} takes {ratio} a row of {min(LENGTHS):,}"


def _links(names: Sequence[str]) -> str:
    return ", ".join(f'<a href="#member/{name}">{name}</a>' for name in names)


def _claims(names: Sequence[str], reports: Mapping[str, ClaimReport]) -> str:
    texts = []
    for name in names:
        report = reports.get(name)
        result = f": <b>{report.verdict}</b>: {escape(report.statement)}" if report else f": {NOT_MEASURED}"
        texts.append(f"<code>kinformer claim {name}</code>{result}")
    return "<br>".join(texts) or "no claim of its paper is measured"


def _measured(name: str) -> Iterator[str]:
    """Yield sentences about committed measurements of a member."""
    for base, ratios in table()["timed"]["beside"].items():
        if times := ratios.get(name):
            texts = [
                f"{ratio:g} times ({low:g} to {high:g}) at {int(at):,}" for at, (ratio, low, high) in times.items()
            ]
            yield (
                f"Speed of a training step of one block, relative to {base}: {', '.join(texts)} tokens "
                f"({escape(table()['timed']['on'])})."
            )
    for task in arena_tasks():
        if (score := task.members.get(name)) is not None:
            place = f"rank {score.rank}" if score.not_compared is None else f"no rank: {score.not_compared}"
            yield (
                f"Arena, {escape(task.name)}: {task.metric} of {escape(score.written)} after {task.budget['steps']} "
                f"steps: {score.text}, {place}."
            )


def draw_member(name: str) -> str:
    """Return the first picture of a small example of a member as HTML, or a sentence if it has none.

    name: name of the member.
    """
    torch.manual_seed(0)
    example = Example.from_entry(modules("members")[name].EXAMPLES[0]).make()
    picture = next(pictures(example, None), None)
    if picture is None:
        return f'<div class="drawing"><p class="soft">{NOT_DRAWN}</p></div>\n'
    return f'<div class="drawing">{"".join(_panels(name, picture))}</div>\n{_caption(picture)}\n'


def _panels(name: str, picture: Picture) -> Iterator[str]:
    for panel in picture.panels[:PANELS]:
        label = ": ".join(part for part in (name, picture.caption, panel.title) if part)
        caption = f"<figcaption>{escape(panel.title)}</figcaption>" if panel.title else ""
        yield f"<figure>{panel_svg(panel, label, len(picture.kinds))}{caption}</figure>"


def _caption(picture: Picture) -> str:
    """Return what a drawing shows, its axes and its colours; further notes are for the whole card."""
    dots = [(n - 1, picture.kinds[n - 1]) for n in kinds_in(picture) if 1 < len(picture.kinds) >= n]
    text = picture.caption[:1].upper() + picture.caption[1:]
    first = "" if dots else _dot(0)
    legend = f'<ul class="key">{"".join(f"<li>{_dot(n)}{escape(kind)}</li>" for n, kind in dots)}</ul>' if dots else ""
    more = [f"{PANELS} of {len(picture.panels)} drawings are shown"] if len(picture.panels) > PANELS else []
    notes = "; ".join([*([picture.note] if picture.note else []), *more])
    note = f' <span class="more">({escape(notes)})</span>' if notes else ""
    axes = f"Down: {picture.line}. Across: {picture.column}."
    return f'<div class="caption soft">{legend}<p>{first}{escape(text)}.{note} {escape(axes)}</p></div>'


def _dot(place: int) -> str:
    return f'<span class="dot" style="background:{colour(place)}"></span>'
