"""Which edits of a history keep the token prefix, found by making them: small conversations through a format and the splicer.

Invariant: nothing is claimed that was not rendered, tokenised and compared here. `template` is a server that renders every request anew
with the model's template; `spliced` is the gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Tokenizer

from openforge.gateway.formats.base import Format
from openforge.gateway.splice import Splicer
from openforge.gateway.text import encode, own_tokenizer
from openforge.gateway.turn import Message, Tool, ToolCall

TOOLS = (
    Tool("run", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "integer"}}}),
    Tool("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}}),
)
ASKED = (Message("system", "You fix bugs."), Message("user", "The test fails. Fix it."))
CALLS = Message("assistant", "", "I look at the test first.", (ToolCall("call_1", "run", '{"command": "pytest", "timeout": 60}'),))
RESULT = Message("tool", "1 failed", tool_call_id="call_1")
DONE = Message("assistant", "Fixed.", "It was off by one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What a client posts next, after calls that went without a surprise."""

    name: str
    posted: Sequence[Sequence[Message]]
    """The calls before, each with the reply that follows it here."""
    replies: Sequence[Message]
    then: Sequence[Message]
    tools: Sequence[Tool] = TOOLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What an edit leaves of the ids of the call before it, prompt and reply."""

    edit: str
    ids: int
    template: int
    """Of these, leading ids that a prompt rendered anew begins with."""
    spliced: int
    """Of these, leading ids that the gateway's prompt begins with."""
    fork: str | None
    """How the gateway records the call, if not as a continuation."""


def _edits() -> list[Edit]:
    first, second = ASKED, (*ASKED, CALLS, RESULT)
    finished = (*second, DONE)
    reordered = ToolCall("call_1", "run", '{"timeout":60,"command":"pytest"}')
    more = Message("user", "Now add a test.")

    def after_call(name: str, then: Sequence[Message], tools: Sequence[Tool] = TOOLS) -> Edit:
        return Edit(name=name, posted=[first], replies=[CALLS], then=then, tools=tools)

    def after_answer(name: str, then: Sequence[Message]) -> Edit:
        return Edit(name=name, posted=[first, second], replies=[CALLS, DONE], then=then)

    return [
        after_call("a tool result is appended", second),
        after_answer("a user message is appended to a finished reply", (*finished, more)),
        after_call("the client loses the reasoning", (*first, replace(CALLS, reasoning=""), RESULT)),
        after_call("the client re-orders the keys of arguments", (*first, replace(CALLS, tool_calls=(reordered,)), RESULT)),
        after_call("a reminder follows a tool result as a user message", (*second, Message("user", "Keep the list of tasks up to date."))),
        after_answer("system text is inserted in the middle", (*finished, Message("system", "The user is away."), more)),
        after_answer("an assistant message is dropped", (*second, Message("user", "Call a tool."))),
        after_call("the system text changes", (Message("system", "You write code."), *second[1:])),
        after_call("a tool is added", second, (*TOOLS, Tool("ask", "Ask the user."))),
    ]


def prefix_report(format: Format, tokenizer: Any) -> list[Finding]:
    """`tokenizer`: the model's Hugging Face fast tokenizer."""
    core = own_tokenizer(tokenizer)
    return [_try(edit, format, core) for edit in _edits()]


def _try(edit: Edit, format: Format, tokenizer: Tokenizer) -> Finding:
    splicer = Splicer(format, tokenizer)
    before: list[int] = []
    for index, (messages, reply) in enumerate(zip(edit.posted, edit.replies, strict=True)):
        plan = splicer.plan(messages, TOOLS)
        splicer.begin(plan)
        sampled = encode(tokenizer, format.reply(reply))
        splicer.commit(plan, str(index), sampled, reply)
        before = [*plan.prompt_ids, *sampled]
    plan = splicer.plan(edit.then, edit.tools)
    return Finding(
        edit=edit.name,
        ids=len(before),
        template=_shared(before, encode(tokenizer, format.prompt(edit.then, edit.tools))),
        spliced=_shared(before, plan.prompt_ids),
        fork=plan.fork,
    )


def _shared(before: Sequence[int], after: Sequence[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
