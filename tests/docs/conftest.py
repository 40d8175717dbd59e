"""The pages, cut into what can be checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    path: Path
    text: str

    @property
    def prose(self) -> str:
        return _FENCE.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        return [body for name, body in _FENCE.findall(self.text) if name == language]

    def anchors(self) -> set[str]:
        """Of the headings, as GitHub makes them."""
        headings = re.findall(r"^#+ (.+)$", self.prose, re.MULTILINE)
        return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(params=PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def page(request: pytest.FixtureRequest) -> Page:
    return Page(request.param, request.param.read_text(encoding="utf-8"))


@pytest.fixture
def read_page() -> object:
    return lambda name: Page(ROOT / name, (ROOT / name).read_text(encoding="utf-8"))
