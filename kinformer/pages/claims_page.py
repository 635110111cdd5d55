"""claims_page: the page of measured claims, with verdicts, numbers and pictures."""

from collections.abc import Mapping
from html import escape

from kinformer.lab.claims.support.claim_report import VERDICTS, ClaimReport
from kinformer.lab.claims.support.verdict import COVERAGE, MEANINGS
from kinformer.lab.train.progress import clock
from kinformer.pages.html_page import html_page

TITLE = "kinformer: claims of papers, measured"
LEAD = (
    "Each threshold was fixed before the reported run. "
    + " ".join(f"<b>{verdict}</b>: {escape(meaning)}." for verdict, meaning in MEANINGS.items())
    + " A mean that must be near a number meets this only if the mean with two standard errors stays within the "
    f"allowed distance. {COVERAGE} The models are small, so a claim may fail here and hold at the sizes of its paper."
)
STYLE = """
td:nth-child(2), td:nth-child(3), th { text-align: left } td:nth-child(3) { white-space: normal; min-width: 16rem }
.holds { color: #1a7f37 } .does-not-hold { color: #c62f2f } .not-resolved { color: #9a6700 }
@media (prefers-color-scheme: dark) {
  .holds { color: #4cc46c } .does-not-hold { color: #ff7b72 } .not-resolved { color: #e3b341 }
}
article { margin: 2.5rem 0 } article img { max-width: 100%; height: auto; background: #fff;
  border-radius: .5rem } li { margin: .3rem 0 }
"""


def claims_page(reports: Mapping[str, ClaimReport], missing: Mapping[str, str]) -> bytes:
    """Return the page of measured claims; the picture NAME.png of each must lie beside it.

    reports: reports of claims by name.
    missing: why a claim has no report, by its name.
    """
    counts = {verdict: sum(report.verdict == verdict for report in reports.values()) for verdict in VERDICTS}
    summary = ", ".join(f"{count} {_verdict(verdict)}" for verdict, count in counts.items())
    rows = "".join(
        f'<tr><td><a href="#{name}">{name}</a></td><td>{_verdict(report.verdict)}</td>'
        f"<td>{escape(report.statement)}</td></tr>\n"
        for name, report in reports.items()
    )
    without = "".join(f"<li><code>{name}</code>: {escape(why)}</li>\n" for name, why in missing.items())
    heads = "".join(f"<th>{title}</th>" for title in ("claim", "verdict", "statement"))
    parts = [
        f"<p>{summary}, {len(missing)} not measured</p>\n",
        f"<p>{LEAD}</p>\n",
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>\n{rows}</tbody></table></div>\n',
        f"<h2>Not measured</h2>\n<ul>{without}</ul>\n" if without else "",
        *map(_article, reports.values()),
    ]
    return html_page(TITLE, "".join(parts), STYLE)


def _article(report: ClaimReport) -> str:
    measures = "".join(
        f"<li>{_verdict(measure.verdict)}: {escape(measure.quantity)}: {escape(measure.summary)}</li>\n"
        for measure in report.measures
    )
    facts = "".join(f"<li>{escape(name)}: {escape(text)}</li>\n" for name, text in report.facts.items())
    label = escape(f"measurements of the claim: {report.statement}")
    seeds = len(report.measures[0].values) if report.measures else 0
    return (
        f'<article id="{report.name}"><h2>{_verdict(report.verdict)}: {escape(report.statement)}</h2>\n'
        f'<p class="soft">{escape(report.source)}</p>\n<ul>{measures}</ul>\n'
        + (f"<details><summary>further measurements</summary><ul>{facts}</ul></details>\n" if facts else "")
        + f'<p><a href="{report.name}.png"><img src="{report.name}.png" alt="{label}" loading="lazy"></a></p>\n'
        f'<p class="soft"><code>kinformer claim {report.name}</code>, {seeds} values, {clock(report.seconds)} on '
        f"{escape(report.on)}</p></article>\n"
    )


def _verdict(verdict: str) -> str:
    return f'<b class="{verdict.replace(" ", "-")}">{verdict}</b>'
