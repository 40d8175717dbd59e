"""System text in the middle of a conversation, for chat templates that know it at the head only and drop or refuse it elsewhere.

It goes, as `<system-reminder>` text, to the end of the user message or tool result that it follows. Behind an assistant message it goes to
the next user message or tool result, and where none follows it becomes a user message.

Invariant: what is behind an assistant message is folded without a look at what is before it, so a conversation that is folded in pieces
and one that is folded whole are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openforge.gateway.turn import Message


def fold_systems(messages: Sequence[Message], *, head: bool) -> list[Message]:
    """The messages without system messages, but for the first if `head` says that they are a conversation's beginning."""
    folded: list[Message] = []
    waiting: list[str] = []
    for index, message in enumerate(messages):
        if message.role == "system" and not (head and index == 0):
            reminder = f"<system-reminder>\n{message.content}\n</system-reminder>"
            if folded and folded[-1].role in ("user", "tool") and not waiting:
                folded[-1] = _append(folded[-1], [reminder])
            else:
                waiting.append(reminder)
        elif waiting and message.role == "assistant":
            folded += [Message("user", "\n\n".join(waiting)), message]
            waiting = []
        else:
            folded.append(_append(message, waiting))
            waiting = []
    return [*folded, Message("user", "\n\n".join(waiting))] if waiting else folded


def _append(message: Message, reminders: Sequence[str]) -> Message:
    texts = [text for text in (message.content, *reminders) if text]
    return replace(message, content="\n\n".join(texts)) if reminders else message
