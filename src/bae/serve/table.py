"""All endpoints, in the order of the OpenAPI document."""

from __future__ import annotations

from typing import Final

from bae.serve import (
    ag_ui,
    comparisons,
    files,
    gates,
    graphs,
    inbox,
    records,
    run_graphs,
    run_rows,
    runs,
    steps,
    threads,
)
from bae.serve.endpoints import Endpoint

TABLE: Final[tuple[Endpoint, ...]] = (
    *graphs.ENDPOINTS,
    *run_rows.ENDPOINTS,
    *runs.ENDPOINTS,
    *steps.ENDPOINTS,
    *run_graphs.ENDPOINTS,
    *records.ENDPOINTS,
    *gates.ENDPOINTS,
    *inbox.ENDPOINTS,
    *threads.ENDPOINTS,
    *comparisons.ENDPOINTS,
    *files.ENDPOINTS,
    *ag_ui.ENDPOINTS,
)
