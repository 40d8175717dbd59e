"""Upstream mode: an API of text (a teacher model, a judge) answers behind the gateway instead of an engine; one file a dialect.

Invariant: what is recorded is what the API said. Its token ids are unknown, so the token fields of a call stay empty.
"""

from openforge.gateway.upstream.backend import UpstreamBackend
from openforge.gateway.upstream.base import UpstreamApi
from openforge.gateway.upstream.chat import ChatApi
from openforge.gateway.upstream.messages import MessagesApi

__all__ = ["APIS", "ChatApi", "MessagesApi", "UpstreamApi", "UpstreamBackend"]

APIS: dict[str, type[ChatApi] | type[MessagesApi]] = {"chat": ChatApi, "messages": MessagesApi}
"""By the dialect they speak."""
