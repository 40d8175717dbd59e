"""DeepSeek V3.2: the tokens of V3.1, calls in the tags that it names DSML, reasoning kept among tool calls.

    <｜begin▁of▁sentence｜> system, tools <｜User｜> … <｜Assistant｜><think> reasoning </think> text
    <｜DSML｜function_calls> <｜DSML｜invoke name="…"> <｜DSML｜parameter name="…" string="true">…</｜DSML｜parameter> …
    <function_results> <result>…</result> </function_results> <think> …

Convention: the encoding script that the model ships in place of a chat template. Reasoning rule: behind the last user message replies open
with `<think>` (`deepseek_v32_thinking`) and keep their reasoning; before it, as without thinking, with `</think>` and none.

Invariant: the rendering equals the script's, where it renders. Beyond it: system text in mid-list is folded into its neighbour, results
that are too few for their calls are closed all the same, a reply behind a reply is opened like any other, and a string that holds its own
end tag is written as JSON, which the tags allow for any value, and can be read back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from openforge.gateway.formats.base import ReplyParser
from openforge.gateway.formats.deepseek_v31 import ASSISTANT, BEGIN, END, USER, head
from openforge.gateway.formats.fold import fold_systems
from openforge.gateway.formats.tagged_parser import TaggedParser
from openforge.gateway.formats.tags import Tags
from openforge.gateway.formats.think_parser import THINK_CLOSE, THINK_OPEN, ThinkParser
from openforge.gateway.formats.values import read_arguments, to_json
from openforge.gateway.formats.vocabulary import token_ids
from openforge.gateway.turn import Message, Tool, ToolCall

DSML = "｜DSML｜"
TAGS = Tags(
    open_block=f"<{DSML}function_calls>",
    close_block=f"</{DSML}function_calls>",
    open_call=f'<{DSML}invoke name="{{name}}">',
    close_call=f"</{DSML}invoke>",
    open_parameter=f'<{DSML}parameter name="{{name}}" string="{{string}}">',
    close_parameter=f"</{DSML}parameter>",
    trim=True,
)

RULES = f"""## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<{DSML}function_calls>" block like the following as part of your reply to the user:
<{DSML}function_calls>
<{DSML}invoke name="$FUNCTION_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$FUNCTION_NAME2">
...
</{DSML}invoke>
</{DSML}function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. \
The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:

<{DSML}function_calls>
...
</{DSML}function_calls>

<function_results>
...
</function_results>

{THINK_OPEN}...thinking about results{THINK_CLOSE}

Here are the functions available in JSONSchema format:
<functions>
"""


class DeepSeekV32:
    def __init__(self, tokenizer: Any, *, thinking: bool = False) -> None:
        self.name = "deepseek_v32_thinking" if thinking else "deepseek_v32"
        end, *_ = token_ids(tokenizer, self.name, (END, BEGIN, USER, ASSISTANT, THINK_OPEN, THINK_CLOSE))
        self.stop_token_ids: tuple[int, ...] = (end,)
        self.closing_token_ids = frozenset(self.stop_token_ids)
        self._thinking = thinking

    def prompt(self, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
        system, rest = head(messages)
        return BEGIN + system + (_tools(tools) if tools else "") + self._turns(fold_systems(rest, head=False), after=None)

    def opening(self, tools: Sequence[Tool], *, after: Message) -> str:
        return _opening(after, None, thinks=self._thinking)

    def reply(self, message: Message) -> str:
        return (message.reasoning + THINK_CLOSE if self._thinking else "") + _body(message)

    def continuation(self, messages: Sequence[Message], tools: Sequence[Tool], *, after: Message, closed: bool) -> str:
        return ("" if closed else END) + self._turns(fold_systems(messages, head=False), after=after)

    def parser(self, tools: Sequence[Tool]) -> ReplyParser:
        calls = TaggedParser(TAGS, tools)
        return ThinkParser(calls, prefilled=True, call_open=TAGS.open_block) if self._thinking else calls

    def _turns(self, messages: Sequence[Message], *, after: Message | None) -> str:
        """`messages` and the opening behind them; `after` is what they stand behind, None at the head."""
        last_user = max((i for i, message in enumerate(messages) if message.role == "user"), default=-1)
        parts = []
        for i, message in enumerate([*messages, None]):
            thinks = self._thinking and i > last_user
            parts.append(_opening(after, message, thinks=thinks))
            if message is not None:
                upcoming = messages[i + 1].role if i + 1 < len(messages) else None
                parts.append(_message(after, message, upcoming, thinks=thinks))
            after = message
        return "".join(parts)


def _opening(before: Message | None, message: Message | None, *, thinks: bool) -> str:
    """What stands between two messages; without a second one, how a reply opens."""
    mark = THINK_OPEN if thinks else THINK_CLOSE
    if before is not None and before.role in ("user", "tool"):
        return "" if message is not None and before.role == message.role == "tool" else mark
    return ASSISTANT + mark if message is None or message.role == "assistant" else ""


def _message(before: Message | None, message: Message, upcoming: str | None, *, thinks: bool) -> str:
    if message.role == "assistant":
        return (message.reasoning + THINK_CLOSE if thinks else "") + _body(message)
    if message.role == "tool":
        first, last = before is None or before.role != "tool", upcoming != "tool"
        begin, end = ("\n\n<function_results>" if first else ""), ("\n</function_results>\n\n" if last else "")
        return f"{begin}\n<result>{message.content}</result>{end}"
    return USER + message.content + ASSISTANT


def _body(message: Message) -> str:
    calls = "\n".join(map(_call, message.tool_calls))
    return message.content + (f"\n\n{TAGS.open_block}\n{calls}\n{TAGS.close_block}" if calls else "") + END


def _call(call: ToolCall) -> str:
    arguments = read_arguments(call.arguments)
    # Arguments a client mangled are shown as the string they are.
    pairs = {"arguments": call.arguments} if arguments is None else arguments
    parameters = "\n".join(_parameter(key, value) for key, value in pairs.items())
    return f"{TAGS.open_call.format(name=call.name)}\n{parameters}\n{TAGS.close_call}"


def _parameter(key: str, value: object) -> str:
    is_string = isinstance(value, str)
    text = str(value) if is_string else to_json(value)
    if DSML in text:
        is_string, text = False, to_json(value).replace(DSML, json.dumps(DSML)[1:-1])
    return TAGS.open_parameter.format(name=key, string="true" if is_string else "false") + text + TAGS.close_parameter


def _tools(tools: Sequence[Tool]) -> str:
    return "\n\n" + RULES + "".join(f"{to_json(tool.record())}\n" for tool in tools) + "</functions>\n"
