"""Drawings as plain text: parameters, operators and hidden groups, in the languages of Mermaid and of Graphviz."""

import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Drawing", "Node", "to_graphviz", "to_mermaid"]

_PLAIN = frozenset(string.ascii_letters + string.digits + " _.,+-/")
_MERMAID_SHAPES: Mapping[str, tuple[str, str]] = {
    "parameter": ("[", "]"),
    "operator": ("([", "])"),
    "group": ("[[", "]]"),
}
_GRAPHVIZ_SHAPES: Mapping[str, str] = {
    "parameter": "shape=box",
    "operator": "shape=ellipse",
    "group": "shape=box, peripheries=2",
}
_COLOURS: Mapping[str, tuple[str, str]] = {
    "exact": ("#d7f0d7", "#2e7d32"),
    "factorised": ("#d7eef5", "#00708a"),
    "diagonal": ("#fdf0c8", "#b07800"),
    "window": ("#f9d9d6", "#b3261e"),
    "unused": ("#ececec", "#6b6b6b"),
}
"""Fill and stroke of every grade of trust."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node.

    Attributes:
        key: its identifier, letters and digits, unique in the drawing.
        kind: ``parameter``, ``operator`` or ``group``.
        lines: what is written in it.
        trust: the grade that colours it, if any.
    """

    key: str
    kind: str
    lines: tuple[str, ...]
    trust: str | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """Nodes, and edges between their keys; ``dashed`` are the edges into what has no complete trace."""

    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str]]
    dashed: frozenset[tuple[str, str]] = frozenset()


def to_mermaid(drawing: Drawing) -> str:
    """A Mermaid flowchart."""
    lines = ["flowchart LR"]
    for node in drawing.nodes:
        start, end = _MERMAID_SHAPES[node.kind]
        text = "<br/>".join(map(_mermaid_text, node.lines))
        lines.append(f'    {node.key}{start}"{text}"{end}{f":::{node.trust}" if node.trust else ""}')
    for edge in drawing.edges:
        lines.append(f"    {edge[0]} {'-.->' if edge in drawing.dashed else '-->'} {edge[1]}")
    for trust, (fill, stroke) in _COLOURS.items():
        if any(node.trust == trust for node in drawing.nodes):
            lines.append(f"    classDef {trust} fill:{fill},stroke:{stroke},color:#000000")
    return "\n".join(lines) + "\n"


def to_graphviz(drawing: Drawing) -> str:
    """A Graphviz digraph in the DOT language."""
    lines = ["digraph trust {", "    rankdir=LR;"]
    for node in drawing.nodes:
        style = _GRAPHVIZ_SHAPES[node.kind]
        if node.trust is not None:
            fill, stroke = _COLOURS[node.trust]
            style += f', style=filled, fillcolor="{fill}", color="{stroke}"'
        label = "\\n".join(map(_graphviz_text, node.lines))
        lines.append(f'    {node.key} [label="{label}", {style}];')
    for edge in drawing.edges:
        lines.append(f"    {edge[0]} -> {edge[1]}{' [style=dashed]' if edge in drawing.dashed else ''};")
    return "\n".join([*lines, "}"]) + "\n"


def _mermaid_text(text: str) -> str:
    """``text`` with everything that Mermaid might read as syntax as a character code."""
    return "".join(c if c in _PLAIN else f"#{ord(c)};" for c in text)


def _graphviz_text(text: str) -> str:
    """``text`` inside the quotes of a DOT label, in which a backslash starts an escape."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
