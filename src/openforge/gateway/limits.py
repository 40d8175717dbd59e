"""What one client may cost the gateway.

Invariant: past a limit comes one clean error, in the shape of the dialect that asked where there is one, and nothing stays behind.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The defaults let every known agent work undisturbed."""

    header_seconds: float = 30.0
    """For a request's line and headers; also for a new connection to say anything at all."""
    header_bytes: int = 64 << 10
    body_seconds: float = 120.0
    """For the whole of a request's body."""
    body_bytes: int = 64 << 20
    """As sent, and again once decompressed. A million-token history is some 10 MB of JSON."""
    json_depth: int = 100
    """How deep a body's arrays and objects nest."""
    calls_per_rollout: int = 256
    """In flight at a time."""
    calls: int = 4096
    """In flight at a time, over all rollouts."""
