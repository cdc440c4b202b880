"""Reads the model cards that `autodial export --card` writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Card(NamedTuple):
    """A card: its head, the Markdown below it, and its fenced blocks by language, in their order."""

    head: dict[str, Any]
    text: str
    blocks: dict[str, list[str]]


def read_card(path: Path) -> Card:
    """A card, as the Hub takes it apart: a head of YAML between two lines of three dashes."""
    found = re.fullmatch(r"---\n(.*?)\n---\n(.*)", path.read_text("utf-8"), re.DOTALL)
    assert found is not None
    blocks: dict[str, list[str]] = {}
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```$", found[2], re.MULTILINE | re.DOTALL):
        blocks.setdefault(language, []).append(code)
    return Card(yaml.safe_load(found[1]), found[2], blocks)


def rows(card: Card, heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its first two lines."""
    section = card.text.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]
