"""For tests, shipped: `ScriptedLM` answers a graph's questions without a model; `assert_prompt`
looks into what a model would be sent; `replaying` runs what was recorded once more; `check_journal`
checks a store of runs; `Provider` is a model provider on loopback for tests of real clients, and
`MCPLoopback` an MCP server, with the faults that real ones have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bae.rooms import export_lazily
from bae.testing.scripted import (
    Answerer,
    Asked,
    Call,
    Scripted,
    ScriptedLM,
    ScriptError,
    Streamed,
    assert_prompt,
)

if TYPE_CHECKING:
    from bae.testing.cassette import Recorded, replaying
    from bae.testing.journal_promises import check_journal
    from bae.testing.mcp_loopback import MCPLoopback
    from bae.testing.provider import Provider, ThreadedProvider, sample
    from bae.testing.wire import (
        Calls,
        Cut,
        Empty,
        Fault,
        Malformed,
        Overlong,
        Received,
        Refusal,
        Stall,
        Status,
        WrongSchema,
    )

__all__ = [
    "Answerer",
    "Asked",
    "Call",
    "Calls",
    "Cut",
    "Empty",
    "Fault",
    "MCPLoopback",
    "Malformed",
    "Overlong",
    "Provider",
    "Received",
    "Recorded",
    "Refusal",
    "ScriptError",
    "Scripted",
    "ScriptedLM",
    "Stall",
    "Status",
    "Streamed",
    "ThreadedProvider",
    "WrongSchema",
    "assert_prompt",
    "check_journal",
    "replaying",
    "sample",
]

# A test with a ScriptedLM needs no server: what a provider is made of is imported when it is used.
__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "cassette": "Recorded replaying",
        "journal_promises": "check_journal",
        "mcp_loopback": "MCPLoopback",
        "provider": "Provider ThreadedProvider sample",
        "wire": "Calls Cut Empty Fault Malformed Overlong Received Refusal Stall Status "
        "WrongSchema",
    },
    former={"tokens_in": ("testing.wire", "it has no successor")},
)
