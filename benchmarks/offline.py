"""Keeps a measuring process off the network: tracing switched off, and any attempt an error.

Import this before any contender. The environment variables must be set before LangChain's tracing
code reads them; the audit hook turns a connection that slips through into a failure that is seen.
"""

from __future__ import annotations

import os
import sys
from typing import Any

QUIET = {
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGGRAPH_CLI_NO_ANALYTICS": "1",
    "HAMILTON_TELEMETRY_ENABLED": "false",
    "BURR_TELEMETRY_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "LOGFIRE_SEND_TO_LOGFIRE": "false",
    "OTEL_SDK_DISABLED": "true",
}
# An event loop opens a socket pair for itself, so only reaching out counts.
_REACHING_OUT = frozenset({"socket.connect", "socket.getaddrinfo", "socket.sendto"})


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event in _REACHING_OUT:
        raise RuntimeError(f"a benchmark tried to reach the network: {event} {args[1:]!r}")


def go_offline() -> None:
    """Call once per process, before a contender is imported."""
    os.environ.update(QUIET)
    sys.addaudithook(_refuse)
