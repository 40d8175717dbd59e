"""Takes out of a prompt what a client changes on every request although it means nothing to the model.

Invariant: only what a named rule of the allow-list matches is changed, and only in the system messages a conversation begins with; whatever
is changed is reported. Otherwise no two prompts of such a client share a single token: every call forks, and nothing is cached.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import takewhile

from openforge.gateway.turn import Message, Turn

RULES = {
    # Claude Code signs its system prompt with a line of its own, as a block or at the head of the text: version, entry point, a checksum
    # `cch`, the previous request's id. Its documentation lets a gateway drop it (code.claude.com/docs/en/llm-gateway-protocol).
    "claude-code-billing": re.compile(r"^x-anthropic-billing-header: *cc(?:h|_\w+)=[^\n]*(?:\n+|\Z)", re.MULTILINE),
}
"""Name of a rule -> what it takes out of a system message."""


@dataclass(frozen=True, slots=True)
class Change:
    """What one rule took out of one message."""

    rule: str
    removed: str


def normalise(turn: Turn) -> tuple[Turn, tuple[Change, ...]]:
    """The turn without its volatile parts, and what these were. A system message that held nothing else is dropped."""
    head = list(takewhile(lambda message: message.role == "system", turn.messages))
    changes: list[Change] = []
    kept = [cleaned for message in head if (cleaned := _clean(message, changes)).content or cleaned is message]
    messages = (*kept, *turn.messages[len(head) :])
    return (replace(turn, messages=messages), tuple(changes)) if changes and messages else (turn, ())


def _clean(message: Message, changes: list[Change]) -> Message:
    text = message.content
    for rule, pattern in RULES.items():
        if removed := pattern.findall(text):
            changes += [Change(rule, piece.rstrip("\n")) for piece in removed]
            text = pattern.sub("", text).rstrip("\n")
    return message if text == message.content else replace(message, content=text)
