"""Tool calls as Qwen3-Coder and Qwen 3.5 and later write them.

<tool_call>\\n<function=N>\\n<parameter=K>\\nvalue\\n</parameter>\\n … </function>\\n</tool_call>
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openforge.gateway.formats.tags import Tags
from openforge.gateway.formats.template import USER, Template
from openforge.gateway.formats.values import read_arguments, to_json
from openforge.gateway.turn import Message, ToolCall

TAGS = Tags(
    open_block="<tool_call>",
    close_block="</tool_call>",
    open_call="<function={name}>",
    close_call="</function>",
    open_parameter="<parameter={name}>",
    close_parameter="</parameter>",
    padding="\n",
    python=True,
    trim=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWriter:
    """Writes calls. Whether lists and scalars stand as JSON or as Python prints them differs between versions of the templates."""

    json_lists: bool
    json_scalars: bool

    @classmethod
    def of(cls, template: Template) -> CallWriter:
        """As the template does it."""
        call = ToolCall("", "probe", '{"list": [true], "scalar": true}')
        text = template.render([Message("user", USER), Message("assistant", tool_calls=(call,))])
        return cls(json_lists="\n[true]\n" in text, json_scalars="\ntrue\n" in text)

    def body(self, content: str, calls: Sequence[ToolCall]) -> str:
        """An assistant's text and calls."""
        parts = [content, "\n".join(map(self._call, calls))]
        return "\n\n".join(part for part in parts if part)

    def _call(self, call: ToolCall) -> str:
        arguments = read_arguments(call.arguments)
        # Arguments that a client mangled are shown as the string they are: the model itself cannot write such a call.
        lines = [call.arguments] if arguments is None else [line for item in arguments.items() for line in self._parameter(*item)]
        return "\n".join([TAGS.open_block, f"<function={call.name}>", *lines, TAGS.close_call, TAGS.close_block])

    def _parameter(self, key: str, value: object) -> tuple[str, str, str]:
        return f"<parameter={key}>", self._value(value), TAGS.close_parameter

    def _value(self, value: object) -> str:
        as_json = isinstance(value, dict) or (self.json_lists if isinstance(value, list) else self.json_scalars)
        return to_json(value) if as_json and not isinstance(value, str) else str(value)
