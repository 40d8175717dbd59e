"""Agents' model calls over HTTP, recorded token by token."""

from openforge.gateway.backend import EngineBackend
from openforge.gateway.limits import Limits
from openforge.gateway.server import Access, Gateway, listen
from openforge.gateway.session import SessionSummary

__all__ = ["Access", "EngineBackend", "Gateway", "Limits", "SessionSummary", "listen"]
