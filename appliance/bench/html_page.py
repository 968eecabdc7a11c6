"""A page that needs nothing but itself: its style, plots as inline SVG, tables. Knows no benchmark."""

from collections.abc import Sequence
from html import escape

_STYLE = """
:root{color-scheme:light dark;--ink:#1d2428;--paper:#fff;--grid:#d7dde0}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ec;--paper:#15191b;--grid:#3a4348}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1180px;
margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:1rem 0;display:block;overflow-x:auto}
th,td{padding:.25rem .7rem;border-bottom:1px solid var(--grid);text-align:right}
th:first-child,td:first-child{text-align:left}td{white-space:nowrap}
.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:1rem}
svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .title{font-weight:600;font-size:14px}
svg .grid{stroke:var(--grid)}svg{width:100%;height:auto}
"""


def page(title: str, lead: str, sections: Sequence[str]) -> str:
    """Return a whole document; `sections` are HTML, the rest is text."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1><p>{escape(lead)}</p>"
        f"{''.join(sections)}</body></html>\n"
    )


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row is the heading."""
    head, *body = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"


def plots(drawn: Sequence[str]) -> str:
    return f'<div class="plots">{"".join(f"<figure>{svg}</figure>" for svg in drawn if svg)}</div>'
