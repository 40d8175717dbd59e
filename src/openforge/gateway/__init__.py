"""Agents' model calls over HTTP, recorded token by token."""

from openforge.gateway.backend import EngineBackend
from openforge.gateway.gateway import Access, Gateway
from openforge.gateway.limits import Limits
from openforge.gateway.server import listen
from openforge.gateway.session import SessionSummary

__all__ = ["Access", "EngineBackend", "Gateway", "Limits", "SessionSummary", "listen"]
