"""Pictures, drawn by matplotlib as SVG that stands in the page and takes its colours from there."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Picture"]


@dataclass(frozen=True)
class Picture:
    """A picture with its title and caption; `command` makes what it is drawn from."""

    name: str
    title: str
    caption: str
    command: str
    svg: str


def draw(path):
    return []
