"""Tools for your tests. `ScriptedLM` answers a graph's questions without a model. `assert_prompt`
checks the prompt of a node. `replaying` replays recorded runs. `check_journal` tests your own
`Journal`. `Provider` is a model provider on loopback, with the faults of real providers.
`MCPLoopback` is an MCP server, with the faults of real servers."""

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

# A test with a ScriptedLM needs no server, so the other modules are imported on first use.
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
