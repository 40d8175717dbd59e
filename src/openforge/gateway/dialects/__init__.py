"""Wire dialects the gateway speaks; one file each."""

import re

from openforge.gateway.dialects.base import Dialect
from openforge.gateway.dialects.chat import Chat
from openforge.gateway.dialects.gemini import Gemini
from openforge.gateway.dialects.messages import Messages
from openforge.gateway.dialects.responses import Responses

__all__ = ["DIALECTS", "Dialect", "dialect_of"]

DIALECTS: tuple[Dialect, ...] = (Chat(), Responses(), Messages(), Gemini())
"""The first one's errors answer requests that no dialect's path matches."""


def dialect_of(path: str) -> Dialect:
    """Whose clients a path belongs to, whether or not it is one that is served."""
    below = re.sub("^/r/[^/]+", "", path)
    found = [
        (len(start), dialect)
        for dialect in DIALECTS
        for each in (*dialect.reply_paths, *dialect.count_paths)
        if below.startswith(start := each.partition("{")[0])
    ]
    return max(found, key=lambda match: match[0], default=(0, DIALECTS[0]))[1]
