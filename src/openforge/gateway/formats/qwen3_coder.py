"""Qwen3-Coder: ChatML whose tools and tool calls are XML.

    <|im_start|>system … <tools> <function> <name>…</name> … </function> </tools> …<|im_end|>
    <|im_start|>assistant … <tool_call> <function=…> <parameter=…> … </parameter> </function> </tool_call><|im_end|>
    <|im_start|>user <tool_response>…</tool_response><|im_end|>          (one user turn for a run of results)

Reasoning rule: the models do not reason; what a client sends as reasoning is not rendered. Invariant: the rendering is the model's own chat
template's. How it writes values that are not strings (JSON, or as Python prints them) is asked of the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from openforge.gateway.formats.chatml import ASSISTANT, END, START, stop_token_ids, tool_response, turn
from openforge.gateway.formats.tagged_parser import TaggedParser
from openforge.gateway.formats.template import SystemTurn, Template
from openforge.gateway.formats.think_parser import ThinkParser, think
from openforge.gateway.formats.values import to_json
from openforge.gateway.formats.xml_calls import TAGS, CallWriter
from openforge.gateway.turn import Message, Tool


class Qwen3Coder:
    name = "qwen3_coder"

    def __init__(self, tokenizer: Any) -> None:
        self.stop_token_ids = stop_token_ids(tokenizer, self.name)
        self.closing_token_ids = frozenset(self.stop_token_ids[:1])
        template = Template(tokenizer, self.name)
        self._system = SystemTurn(template, _tool, f"{START}user\n")
        self._calls = CallWriter.of(template)

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        has_system = bool(messages) and messages[0].role == "system"
        system = messages[0].content if has_system else None
        return self._system.render(system, tools) + self._turns(messages[has_system:]) + ASSISTANT

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return f"\n{ASSISTANT}"

    def reply(self, message: Message) -> str:
        return f"{think(message.reasoning) if message.reasoning else ''}{self._body(message)}{END}"

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return f"{'' if closed else END}\n{self._turns(messages)}{ASSISTANT}"

    def parser(self, tools: Sequence[Tool]) -> ThinkParser:
        return ThinkParser(TaggedParser(TAGS, tools), prefilled=False, call_open=TAGS.open_block)

    def _turns(self, messages: Sequence[Message]) -> str:
        parts: list[str] = []
        for is_tool, run in groupby(messages, lambda message: message.role == "tool"):
            if is_tool:
                parts.append(turn("user", "".join(f"{tool_response(message)}\n" for message in run)))
            else:
                parts.extend(turn(m.role, self._body(m) if m.role == "assistant" else m.content) for m in run)
        return "".join(parts)

    def _body(self, message: Message) -> str:
        return self._calls.body(message.content.strip(), message.tool_calls) if message.tool_calls else message.content


def _tool(tool: Tool) -> str:
    fields = [f"<name>{tool.name}</name>", f"<description>{tool.description.strip()}</description>", "<parameters>"]
    properties = tool.parameters.get("properties")
    for name, schema in properties.items() if isinstance(properties, dict) else ():
        fields += ["<parameter>", f"<name>{name}</name>", *_property(schema), "</parameter>"]
    fields += [*_others(tool.parameters, ("type", "properties")), "</parameters>"]
    return "\n".join(["<function>", *fields, "</function>"])


def _property(schema: object) -> list[str]:
    if not isinstance(schema, dict):
        return []
    fields = [f"<type>{schema['type']}</type>"] if "type" in schema else []
    if "description" in schema:
        fields.append(f"<description>{str(schema['description']).strip()}</description>")
    return [*fields, *_others(schema, ("name", "type", "description"))]


def _others(schema: dict[str, Any], handled: tuple[str, ...]) -> list[str]:
    """All other words of a schema; what is no object stands as Python prints it, as in the template."""
    return [f"<{key}>{to_json(value) if isinstance(value, dict) else value}</{key}>" for key, value in schema.items() if key not in handled]
