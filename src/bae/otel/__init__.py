"""Runs as OpenTelemetry traces, by the semantic conventions for generative AI, made of the records
that a run writes anyway. Needs the extra `otel`; `tracing.py` has what is public."""

from bae.lm.extras import need

need("opentelemetry.trace", extra="otel", by="bae.otel")

from bae.otel.tracing import (  # noqa: E402  with the package there
    export,
    export_run,
    instrument,
    tracing,
)

__all__ = ["export", "export_run", "instrument", "tracing"]
