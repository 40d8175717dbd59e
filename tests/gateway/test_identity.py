"""What clients' headers say of who is speaking. The headers are those that the clients document or send."""

from __future__ import annotations

import json

import pytest

from openforge.gateway.identity import identify, speaker
from openforge.types import Speaker


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, Speaker()),
        ({"x-claude-code-session-id": "s"}, Speaker(session="s")),
        ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, Speaker(session="s", agent="a")),
        (
            {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "b", "x-claude-code-parent-agent-id": "a"},
            Speaker(session="s", agent="b", parent="a"),
        ),
        ({"x-claude-code-session-id": "s", "x-claude-code-request-class": "main"}, Speaker(session="s")),
        ({"x-claude-code-session-id": "s", "x-claude-code-request-class": "auxiliary"}, Speaker(session="s", purpose="auxiliary")),
        ({"x-claude-code-session-id": "s", "x-claude-code-request-class": "compaction"}, Speaker(session="s", purpose="compact")),
        ({"session-id": "s", "thread-id": "s"}, Speaker(session="s")),
        (
            {"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s", "x-openai-subagent": "collab_spawn"},
            Speaker(session="s", agent="t", parent="s"),
        ),
        (
            {"session-id": "s", "thread-id": "t", "x-codex-parent-thread-id": "s", "x-openai-subagent": "review"},
            Speaker(session="s", agent="t", parent="s", purpose="review"),
        ),
        ({"session_id": "s", "conversation_id": "s"}, Speaker(session="s")),
        ({"session_id": "c", "x-codex-parent-thread-id": "s"}, Speaker(session="c", agent="c", parent="s")),
        (
            {"session-id": "s", "thread-id": "s", "x-codex-turn-metadata": json.dumps({"request_kind": "compaction"})},
            Speaker(session="s", purpose="compact"),
        ),
        ({"session-id": "s", "thread-id": "s", "x-codex-turn-metadata": json.dumps({"request_kind": "turn"})}, Speaker(session="s")),
        ({"session-id": "s", "x-codex-turn-metadata": "not json"}, Speaker(session="s")),
        ({"session-id": "s", "x-codex-turn-metadata": "[1]"}, Speaker(session="s")),
        ({"x-session-id": "ses_a", "x-session-affinity": "ses_a"}, Speaker(session="ses_a")),
        ({"x-session-id": "ses_b", "x-parent-session-id": "ses_a"}, Speaker(session="ses_b", agent="ses_b", parent="ses_a")),
        ({"x-stainless-retry-count": "2"}, Speaker(retry=2)),
        ({"x-stainless-retry-count": "many"}, Speaker()),
    ],
)
def test_the_clients_own_names_are_read(headers, found):
    assert speaker(headers) == found


@pytest.mark.parametrize("header", ["x-api-key", "x-goog-api-key"])
def test_every_dialects_key_header_identifies(header):
    assert identify(None, {header: "k"}, {"k": "rollout"}) == "rollout"
