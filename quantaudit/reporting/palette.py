"""Colours, defined once: the page's light and dark variables, and the chart colours made from them.

A chart inside the page names CSS variables, so it follows the reader's light or dark setting without being drawn
again; a chart in a file of its own has the light colours written out. Every pair of text and ground has a contrast of
at least 4.5, and no colour stands alone: outcomes have words and shapes too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Named CSS colours.

    Attributes:
        heat_1: Weakest step of the heat maps; `heat_7` is the strongest.
    """

    ground: str
    card: str
    ink: str
    muted: str
    line: str
    allowed: str
    floor: str
    series: str
    passing: str
    failing: str
    undecided: str
    passing_wash: str
    failing_wash: str
    undecided_wash: str
    heat_1: str
    heat_2: str
    heat_3: str
    heat_4: str
    heat_5: str
    heat_6: str
    heat_7: str

    def variables(self) -> dict[str, str]:
        """Returns the CSS custom properties: name without dashes, and value."""
        return {f.name.replace("_", "-"): str(getattr(self, f.name)) for f in fields(self)}

    def heat(self) -> list[str]:
        """Returns the seven steps of the heat maps, weakest first."""
        return [getattr(self, f"heat_{step}") for step in range(1, 8)]


LIGHT = Palette(
    ground="#f7f6f2",
    card="#ffffff",
    ink="#1e2430",
    muted="#5c6472",
    line="#dfdcd3",
    allowed="#e7ebe9",
    floor="#b9c4c4",
    series="#2b5c8a",
    passing="#1c6e4c",
    failing="#ab2f2b",
    undecided="#855400",
    passing_wash="#e6f2eb",
    failing_wash="#f9e8e5",
    undecided_wash="#f8efdb",
    heat_1="#edf2f3",
    heat_2="#d3e1e6",
    heat_3="#afc9d6",
    heat_4="#85acc4",
    heat_5="#5b8bb0",
    heat_6="#376794",
    heat_7="#1d406e",
)

DARK = Palette(
    ground="#12151a",
    card="#1a1e25",
    ink="#e7e9ed",
    muted="#a2aab6",
    line="#323945",
    allowed="#2a313a",
    floor="#4d5a64",
    series="#8db8e2",
    passing="#6fcb9f",
    failing="#f2948a",
    undecided="#e5b85c",
    passing_wash="#17291f",
    failing_wash="#2d1b1d",
    undecided_wash="#2e2614",
    heat_1="#2a3440",
    heat_2="#314456",
    heat_3="#3a5670",
    heat_4="#456a8b",
    heat_5="#5c8ab0",
    heat_6="#85b0d1",
    heat_7="#c3e0f2",
)

PAGE = Palette(**{f.name: f"var(--{f.name.replace('_', '-')})" for f in fields(Palette)})
