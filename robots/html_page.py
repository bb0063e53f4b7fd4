"""Provides the style and elements of the HTML pages that Handoff writes, which use neither scripts
nor the network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Literal

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #646b73; --line: #d9dde2; --paper: #fff; --card: #f6f7f9;
        --accent: #1769aa; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7e9ec; --soft: #99a1aa; --line: #33383e; --paper: #15171a;
        --card: #1d2024; --accent: #6cb4ee; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 1080px; padding: 2.5rem 1.5rem 5rem; overflow-wrap: break-word; }
h1 { font-size: 1.9rem; margin: 0 0 .2rem; } h2 { font-size: 1.25rem; margin: 2.6rem 0 .6rem; }
p.soft, td.soft, figcaption { color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(165px, 1fr)); gap: .8rem; margin: 1.6rem 0; }
.tile { background: var(--card); border-radius: .6rem; padding: .8rem 1rem;
        overflow-wrap: anywhere; }
.tile b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; color: var(--accent); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
.short { min-width: 4.5rem; }
th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
figure { margin: 1rem 0; } img, video { max-width: 100%; border-radius: .5rem; background: #fff; }
.videos { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 1rem; }
.videos figure { margin: 0; } .videos video { width: 100%; }
figure svg { max-width: 100%; height: auto; background: #fff; border-radius: .5rem; }
.banner { border-left: .4rem solid; border-radius: .4rem; padding: .9rem 1.2rem; margin: 1.4rem 0;
          background: var(--card); font-size: 1.15rem; font-weight: 600; }
.banner ul { font-size: 1rem; font-weight: 400; margin: .4rem 0 0; }
.good { border-color: #2e8b57; } .bad { border-color: #c0392b; } .warn { border-color: #c98a00; }
nav ol { columns: 3 12rem; padding-left: 1.4rem; } a { color: var(--accent); }
.boxes { list-style: "☐  "; } .scroll { overflow-x: auto; }
@media print { :root { --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --card: #f4f4f4; --accent: #000; }
               body { max-width: none; padding: 0; font-size: 10.5pt; } nav { display: none; }
               h2 { break-after: avoid; } figure, tr, .tile, .banner { break-inside: avoid; }
               .scroll { overflow: visible; } table { font-size: 8.5pt; } .short { min-width: 0; }
               th, td { padding-right: .35rem; overflow-wrap: anywhere; } }
code { font-size: .88em; } details { margin: .6rem 0; } pre { background: var(--card); padding: 1rem;
       border-radius: .5rem; font-size: .82rem; white-space: pre-wrap; overflow-wrap: anywhere; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
"""


FOOT = "</main></html>"
"""The HTML after a page's content."""


def head(title: str) -> str:
    """The HTML before a page's content, which `FOOT` ends."""
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><style>{STYLE}</style>"
        "<main>"
    )


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """An HTML table of plain text; a column without a heading has none for screen readers."""
    cells = (f"<th>{html.escape(heading)}" if heading else "<td>" for heading in headings)
    lines = [f"<tr>{''.join(cells)}</tr>"]
    lines += [
        "<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in row) + "</tr>" for row in rows
    ]
    return scrolled("".join(lines))


def scrolled(rows: str) -> str:
    """An HTML table that is scrolled where the page is narrower, also without a mouse; `rows` are
    HTML."""
    return f"<div class='scroll' tabindex='0'><table>{rows}</table></div>"


def tiles(entries: Sequence[tuple[str, str]]) -> str:
    """Figures with their labels side by side: `(figure, label)`."""
    cells = "".join(
        f"<div class='tile'><b>{html.escape(figure)}</b>{html.escape(label)}</div>"
        for figure, label in entries
    )
    return f"<div class='tiles'>{cells}</div>"


def banner(kind: Literal["good", "bad", "warn"], content: str) -> str:
    """A verdict in large type; `content` is HTML."""
    return f"<div class='banner {kind}'>{content}</div>"


def contents(names: Sequence[str]) -> str:
    """A table of contents of sections, whose ids are their names in lower case with dashes."""
    items = "".join(f"<li><a href='#{anchor(name)}'>{html.escape(name)}</a>" for name in names)
    return f"<nav><ol>{items}</ol></nav>"


def heading(name: str) -> str:
    """The heading of a section, to which the table of contents leads."""
    return f"<h2 id='{anchor(name)}'>{html.escape(name)}</h2>"


def anchor(name: str) -> str:
    """The id of a section."""
    return html.escape(name.lower().replace(" ", "-"))


def videos(entries: Sequence[tuple[str, str]]) -> str:
    """A grid of videos with captions: `(path relative to the page, caption)`."""
    return (
        f"<div class='videos'>{''.join(video(*entry) for entry in entries)}</div>"
        if entries
        else ""
    )


def video(source: str, caption: str) -> str:
    """A video with a caption; `source` is its path relative to the page. Its first picture is shown
    until it plays."""
    return (
        f"<figure><video src='{html.escape(source)}#t=0.1' preload='metadata' controls loop muted playsinline></video>"
        f"<figcaption>{html.escape(caption)}</figcaption></figure>"
    )


def picture(source: str, caption: str) -> str:
    """An image with a caption; `source` is its path relative to the page."""
    text = html.escape(caption)
    image = f"<img src='{html.escape(source)}' alt='{text}'>"
    return f"<figure>{image}<figcaption>{text}</figcaption></figure>"
