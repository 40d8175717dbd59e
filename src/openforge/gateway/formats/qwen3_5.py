"""Qwen 3.5 and later: ChatML with JSON schemas of tools, XML tool calls, and reasoning whose `<think>` is prefilled.

    <|im_start|>system … <tools> one JSON schema a line </tools> … {system text}<|im_end|>
    <|im_start|>assistant\\n<think>\\n…\\n</think>\\n\\n… <tool_call> <function=…> … </function> </tool_call><|im_end|>
    <|im_start|>user <tool_response>…</tool_response><|im_end|>          (one user turn for a run of results)

Reasoning rule, asked of the template: kept behind the last user message that is not a tool result, or everywhere. White space around a
message's text is dropped. Invariant: the rendering is the model's own chat template's, with system text in the middle folded first (the
template refuses it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from openforge.gateway.formats.chatml import END, START, last_query, stop_token_ids, turns
from openforge.gateway.formats.fold import fold_systems
from openforge.gateway.formats.tagged_parser import TaggedParser
from openforge.gateway.formats.template import USER, SystemTurn, Template
from openforge.gateway.formats.think_parser import THINK_OPEN, ThinkParser, sampled_think, split_think, think
from openforge.gateway.formats.values import function_schema
from openforge.gateway.formats.xml_calls import TAGS, CallWriter
from openforge.gateway.turn import Message, Tool


class Qwen35:
    name = "qwen3_5"

    def __init__(self, tokenizer: Any) -> None:
        self.stop_token_ids = stop_token_ids(tokenizer, self.name)
        self.closing_token_ids = frozenset(self.stop_token_ids[:1])
        template = Template(tokenizer, self.name)
        self._system = SystemTurn(template, function_schema, f"{START}user\n")
        self._calls = CallWriter.of(template)
        self._opening = template.opening()
        self._prefilled = self._opening.endswith(f"{THINK_OPEN}\n")
        asked, why = Message("user", USER), "Probing the reasoning."
        self._splits = template.render([asked, Message("assistant", f"{think(why)}so")]).count(THINK_OPEN) == 1
        self._keeps_all = why in template.render([asked, Message("assistant", "so", why), asked])

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        folded = [replace(message, content=message.content.strip()) for message in fold_systems(messages, head=True)]
        has_system = bool(folded) and folded[0].role == "system"
        system = folded[0].content if has_system else None
        since = last_query(folded, default=len(folded) - 1) - has_system
        return self._system.render(system, tools) + self._turns(folded[has_system:], since=since) + self._opening

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return f"\n{self._opening}"

    def reply(self, message: Message) -> str:
        return f"{sampled_think(message.reasoning, prefilled=self._prefilled)}{self._calls.body(message.content, message.tool_calls)}{END}"

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        folded = [replace(message, content=message.content.strip()) for message in fold_systems(messages, head=False)]
        return f"{'' if closed else END}\n{self._turns(folded, since=last_query(folded, default=-1))}{self._opening}"

    def parser(self, tools: Sequence[Tool]) -> ThinkParser:
        return ThinkParser(TaggedParser(TAGS, tools), prefilled=self._prefilled, call_open=TAGS.open_block)

    def _turns(self, messages: Sequence[Message], *, since: int) -> str:
        """`since`: the message behind which reasoning is kept."""
        return turns(messages, lambda index, m: self._assistant(m, keep=self._keeps_all or index > since))

    def _assistant(self, message: Message, *, keep: bool) -> str:
        reasoning, content = split_think(message, keep_end=True) if self._splits else (message.reasoning, message.content)
        return (think(reasoning.strip()) if keep else "") + self._calls.body(content, message.tool_calls)
