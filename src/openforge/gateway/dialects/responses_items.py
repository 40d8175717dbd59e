"""Output items of the OpenAI Responses API as they grow: reasoning, message, function call, freeform call.

Invariant: an item has one id for life, and its row depends only on what was added to it, so a streamed item ends as the plain one.
"""

from __future__ import annotations

from typing import Any, Protocol

from openforge.gateway.dialects.base import ReplyHead
from openforge.gateway.dialects.responses_tools import own_name, unwrap_input
from openforge.gateway.reply import ReasoningDelta, ReplyEvent, TextDelta
from openforge.gateway.turn import Turn

Event = tuple[str, dict[str, Any]]
"""An event's type, and its fields beyond those every event of an item has."""


class OutputItem(Protocol):
    id: str

    def row(self, status: str) -> dict[str, Any]:
        """The item as it stands."""
        ...

    def begin(self) -> list[Event]: ...

    def add(self, text: str) -> list[Event]: ...

    def end(self) -> list[Event]: ...


class ReasoningItem:
    """Reasoning travels as the item's summary: of its fields the one that every client reads and sends back."""

    def __init__(self, id: str, *, sealed: bool) -> None:
        """`sealed`: the client asked for `encrypted_content`; many send no item back that lacks it. It holds no more than the id."""
        self.id = id
        self._sealed = sealed
        self._texts: list[str] = []

    def row(self, status: str) -> dict[str, Any]:
        summary = [self._part("".join(self._texts))] if self._texts else []
        sealed = {"encrypted_content": self.id} if self._sealed else {}
        return {"type": "reasoning", "id": self.id, "status": status, "summary": summary, **sealed}

    def begin(self) -> list[Event]:
        return [("response.reasoning_summary_part.added", {"summary_index": 0, "part": self._part("")})]

    def add(self, text: str) -> list[Event]:
        self._texts.append(text)
        return [("response.reasoning_summary_text.delta", {"summary_index": 0, "delta": text})]

    def end(self) -> list[Event]:
        text = "".join(self._texts)
        return [
            ("response.reasoning_summary_text.done", {"summary_index": 0, "text": text}),
            ("response.reasoning_summary_part.done", {"summary_index": 0, "part": self._part(text)}),
        ]

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "summary_text", "text": text}


class MessageItem:
    def __init__(self, id: str) -> None:
        self.id = id
        self._texts: list[str] = []

    def row(self, status: str) -> dict[str, Any]:
        content = [self._part("".join(self._texts))] if self._texts else []
        return {"type": "message", "id": self.id, "status": status, "role": "assistant", "content": content}

    def begin(self) -> list[Event]:
        return [("response.content_part.added", {"content_index": 0, "part": self._part("")})]

    def add(self, text: str) -> list[Event]:
        self._texts.append(text)
        return [("response.output_text.delta", {"content_index": 0, "delta": text, "logprobs": []})]

    def end(self) -> list[Event]:
        text = "".join(self._texts)
        return [
            ("response.output_text.done", {"content_index": 0, "text": text, "logprobs": []}),
            ("response.content_part.done", {"content_index": 0, "part": self._part(text)}),
        ]

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


class FunctionCallItem:
    def __init__(self, id: str, *, call_id: str, name: str, namespace: str | None) -> None:
        self.id = id
        self._head = {"call_id": call_id, "name": name, **({"namespace": namespace} if namespace else {})}
        self._texts: list[str] = []

    def row(self, status: str) -> dict[str, Any]:
        return {"type": "function_call", "id": self.id, "status": status, **self._head, "arguments": "".join(self._texts)}

    def begin(self) -> list[Event]:
        return []

    def add(self, text: str) -> list[Event]:
        self._texts.append(text)
        return [("response.function_call_arguments.delta", {"delta": text})]

    def end(self) -> list[Event]:
        return [("response.function_call_arguments.done", {"name": self._head["name"], "arguments": "".join(self._texts)})]


class CustomCallItem(FunctionCallItem):
    """A call of a freeform tool. Its text stands escaped in the model's JSON, so it is shown once that is complete."""

    def row(self, status: str) -> dict[str, Any]:
        return {"type": "custom_tool_call", "id": self.id, "status": status, **self._head, "input": self._input()}

    def add(self, text: str) -> list[Event]:
        self._texts.append(text)
        return []

    def end(self) -> list[Event]:
        text = self._input()
        return [("response.custom_tool_call_input.delta", {"delta": text}), ("response.custom_tool_call_input.done", {"input": text})]

    def _input(self) -> str:
        return unwrap_input("".join(self._texts))


class ItemMaker:
    """Makes the items of one reply, in their order."""

    def __init__(self, head: ReplyHead, turn: Turn) -> None:
        self._reply_id = head.id
        self._tools = {tool.name: tool for tool in turn.tools}
        self._sealed = "reasoning.encrypted_content" in (turn.fields.get("include") or ())
        self._made = 0

    def make(self, first: ReplyEvent) -> OutputItem:
        """An empty item for the part of the reply that `first` begins."""
        if isinstance(first, TextDelta):
            return MessageItem(self._id("msg"))
        if isinstance(first, ReasoningDelta):
            return ReasoningItem(self._id("rs"), sealed=self._sealed)
        assert first.id is not None
        assert first.name is not None
        # A model may call what nobody offered: the client answers that.
        tool = self._tools.get(first.name)
        name, namespace = (first.name, None) if tool is None else (own_name(tool), tool.namespace)
        if tool is not None and tool.freeform:
            return CustomCallItem(self._id("ctc"), call_id=first.id, name=name, namespace=namespace)
        return FunctionCallItem(self._id("fc"), call_id=first.id, name=name, namespace=namespace)

    def _id(self, prefix: str) -> str:
        self._made += 1
        return f"{prefix}_{self._reply_id}_{self._made - 1}"
