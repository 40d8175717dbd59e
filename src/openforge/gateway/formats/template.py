"""A model's own chat template, asked by example.

Invariant: what a template tells its model (how tools are introduced, a default system text, how a reply begins) is read off what it
renders, never copied here. So a model that was fine-tuned with other words is rendered in its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from openforge.gateway.formats.base import Format
from openforge.gateway.formats.values import read_arguments
from openforge.gateway.turn import Message, Tool, ToolCall
from openforge.types import UserError

SYSTEM, USER = "Probing the system text.", "Probing the user text."
TOOLS = (Tool("probe_one", "The first.", {"type": "object"}), Tool("probe_two", "The second.", {"type": "object"}))


class Template:
    def __init__(self, tokenizer: Any, format: str, **variables: str) -> None:
        """`format`: whose template it should be; `variables`: what the template reads beside messages and tools. Raises UserError if the
        tokenizer has none."""
        if not isinstance(tokenizer.chat_template, str):
            raise UserError(f"model.format: {format} is rendered as the model's own chat template says, and this tokenizer has none")
        self._tokenizer = tokenizer
        self._variables = variables

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, opening: bool = False) -> str:
        """`opening`: with the beginning of the next reply."""
        text: str = self._tokenizer.apply_chat_template(
            [as_template_row(message) for message in messages],
            tools=[{"type": "function", "function": tool.record()} for tool in tools] or None,
            tokenize=False,
            add_generation_prompt=opening,
            **self._variables,
        )
        return text

    def opening(self) -> str:
        """How a reply begins before the model speaks."""
        asked = [Message("user", USER)]
        return self.render(asked, opening=True).removeprefix(self.render(asked))


class SystemTurn:
    """The beginning of a prompt: everything before the first message that is not its system text."""

    def __init__(self, template: Template, write_tool: Callable[[Tool], str], user_turn: str) -> None:
        """`write_tool`: a tool as the template writes it; `user_turn`: how the template begins a user's turn."""
        self._write_tool = write_tool
        self._frames = {
            (system, bool(tools)): self._frame(template.render(_asked(system), tools), tools, user_turn)
            for system in (None, "", SYSTEM)
            for tools in ((), TOOLS)
        }

    def render(self, system: str | None, tools: Sequence[Tool]) -> str:
        before, between, after = self._frames[SYSTEM if system else system, bool(tools)]
        written = between.join(map(self._write_tool, tools))
        return before.replace(SYSTEM, system or "") + written + after.replace(SYSTEM, system or "")

    def _frame(self, text: str, tools: Sequence[Tool], user_turn: str) -> tuple[str, str, str]:
        """What stands before the tools, between two of them, and behind them."""
        text = text[: text.index(user_turn + USER)]
        if not tools:
            return text, "", ""
        first, second = map(self._write_tool, tools)
        before, _, rest = text.partition(first)
        between, found, after = rest.partition(second)
        if not found:
            raise UserError("model.format: the chat template writes tools otherwise than the format does; set model.format to another one")
        return before, between, after


def check_rendering(format: Format, tokenizer: Any) -> None:
    """Raises UserError if the format renders an example otherwise than the tokenizer's own template does."""
    template = Template(tokenizer, format.name)
    call = ToolCall("call", TOOLS[0].name, '{"text": "one", "count": 2}')
    asked = [Message("system", SYSTEM), Message("user", USER)]
    worked = [Message("assistant", "Let me see.", "Hm.", (call,)), Message("tool", "three"), Message("assistant", "Three.", "So.")]
    for messages in ([*asked, *worked], [*asked, *worked, Message("user", USER)]):
        expected, written = template.render(messages, TOOLS, opening=True), format.prompt(messages, TOOLS)
        if expected != written:
            at = next((at for at, (a, b) in enumerate(zip(expected, written, strict=False)) if a != b), min(len(expected), len(written)))
            raise UserError(
                f"model.format: the chat template looks like that of {format.name}, but writes {expected[at : at + 40]!r} where the format "
                f"writes {written[at : at + 40]!r}; set model.format to {format.name} to take the format's rendering, or to another one"
            )


def _asked(system: str | None) -> list[Message]:
    return [*([] if system is None else [Message("system", system)]), Message("user", USER)]


def as_template_row(message: Message) -> dict[str, Any]:
    """A message as chat templates take it. Arguments are an object; those that a client mangled are the string they are."""
    row: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        row["reasoning_content"] = message.reasoning
    if message.tool_calls:
        row["tool_calls"] = [{"type": "function", "function": _function(call.name, call.arguments)} for call in message.tool_calls]
    return row


def _function(name: str, arguments: str) -> dict[str, Any]:
    parsed = read_arguments(arguments)
    return {"name": name, "arguments": arguments if parsed is None else parsed}
