"""HTML pages: one file without links to others, readable on any screen, light and dark."""

from html import escape

# HTML does not allow control characters
CONTROL = {code: "\ufffd" for code in (*range(9), 11, 12, *range(14, 32), *range(127, 160))}
CONTROL[ord("\r")] = ""  # a line may end with a carriage return and a newline
STYLE = """
:root { color-scheme: light dark; --back: #fff; --ink: #1c2024; --soft: #5b6570; --line: #d9dee3; --box: #f5f7f9 }
@media (prefers-color-scheme: dark) {
  :root { --back: #14171a; --ink: #e6e9ec; --soft: #9aa5b0; --line: #343a41; --box: #1d2125 }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem clamp(.8rem, 3vw, 2rem); max-width: 82rem; background: var(--back);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere } h2 { font-size: 1.15rem; margin-top: 2rem }
p { max-width: 62rem; overflow-wrap: anywhere } .soft, figcaption { color: var(--soft); font-size: .9rem }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; list-style: none }
.dot { display: inline-block; width: .75em; height: .75em; border-radius: 50%; margin-right: .45em }
.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .4rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--back);
  white-space: normal; min-width: 11rem; max-width: 22rem; overflow-wrap: break-word }
.name { display: flex } .name .dot { flex: none; margin-top: .4em } .word { white-space: nowrap }
@media (max-width: 40rem) { th, td { padding: .4rem .6rem } th:first-child, td:first-child { min-width: 9.5rem } }
tr:last-child td { border-bottom: 0 } thead th { color: var(--soft); font-weight: 600 }
.drawings { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)) }
.scroll + .drawings, figure + .scroll { margin-top: 1rem }
figure { margin: 0; padding: .8rem; background: var(--box); border-radius: .5rem; min-width: 0 }
figure svg { width: 100%; height: auto; display: block }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--box); padding: .8rem; border-radius: .5rem;
  font-size: .85rem } pre .soft { font-size: inherit }
"""


def html_page(title: str, body: str, style: str = "") -> bytes:
    """Return an HTML page with a title, its heading and the common style.

    title: title and heading of the page.
    body: HTML below the heading.
    style: further CSS rules.
    """
    page = (
        '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head>\n"
        f"<body>\n<h1>{escape(title)}</h1>\n{body}</body>\n</html>\n"
    )
    return page.translate(CONTROL).encode()
