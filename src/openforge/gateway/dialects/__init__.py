"""Wire dialects the gateway speaks; one file each."""

from openforge.gateway.dialects.base import Dialect
from openforge.gateway.dialects.chat import Chat
from openforge.gateway.dialects.messages import Messages
from openforge.gateway.dialects.responses import Responses

__all__ = ["DIALECTS", "Dialect"]

DIALECTS: tuple[Dialect, ...] = (Chat(), Responses(), Messages())
"""The first one's errors answer requests that no dialect's path matches."""
