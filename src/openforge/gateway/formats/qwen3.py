"""Qwen 2.5 and Qwen 3, and others with a ChatML template of their own that introduces tools as these do.

    <|im_start|>system … <tools> one JSON schema a line </tools> …<|im_end|>
    <|im_start|>assistant <think>…</think> … <tool_call>{"name": …, "arguments": {…}}</tool_call><|im_end|>
    <|im_start|>user <tool_response>…</tool_response><|im_end|>          (one user turn for a run of results)

Reasoning rule, asked of the template: kept behind the last user message that is not a tool result (Qwen 3), or never (the others).
Invariant: the rendering is the model's own chat template's. What the templates of the family differ in is asked of the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openforge.gateway.formats.chatml import END, START, last_query, stop_token_ids, turns
from openforge.gateway.formats.hermes_parser import CALL_OPEN, HermesParser, text_and_calls
from openforge.gateway.formats.template import USER, SystemTurn, Template
from openforge.gateway.formats.think_parser import THINK_OPEN, ThinkParser, sampled_think, split_think, think
from openforge.gateway.formats.values import function_schema
from openforge.gateway.turn import Message, Tool


class Qwen3:
    name = "qwen3"

    def __init__(self, tokenizer: Any) -> None:
        self.stop_token_ids = stop_token_ids(tokenizer, self.name)
        self.closing_token_ids = frozenset(self.stop_token_ids[:1])
        template = Template(tokenizer, self.name)
        self._system = SystemTurn(template, function_schema, f"{START}user\n")
        self._opening = template.opening()
        self._prefilled = self._opening.endswith(f"{THINK_OPEN}\n")
        asked, why = Message("user", USER), "Probing the reasoning."
        self._thinks = why in template.render([asked, Message("assistant", "so", why), Message("tool", "done")])

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        has_system = bool(messages) and messages[0].role == "system"
        system = messages[0].content if has_system else None
        since = last_query(messages, default=len(messages) - 1) - has_system
        return self._system.render(system, tools) + self._turns(messages[has_system:], since=since) + self._opening

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return f"\n{self._opening}"

    def reply(self, message: Message) -> str:
        return f"{sampled_think(message.reasoning, prefilled=self._prefilled)}{text_and_calls(message.content, message.tool_calls)}{END}"

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return f"{'' if closed else END}\n{self._turns(messages, since=last_query(messages, default=-1))}{self._opening}"

    def parser(self, tools: Sequence[Tool]) -> ThinkParser:
        return ThinkParser(HermesParser(), prefilled=self._prefilled, call_open=CALL_OPEN)

    def _turns(self, messages: Sequence[Message], *, since: int) -> str:
        """`since`: the message behind which reasoning is kept."""
        return turns(messages, lambda index, m: self._assistant(m, keep=index > since, last=index == len(messages) - 1))

    def _assistant(self, message: Message, *, keep: bool, last: bool) -> str:
        reasoning, content = split_think(message, keep_end=True) if self._thinks else ("", message.content)
        body = text_and_calls(content, message.tool_calls)
        if not (self._thinks and keep and (reasoning or last)):
            return body
        return think(reasoning.strip("\n")) + body[len(content) - len(content.lstrip("\n")) :]
