"""Progress of long work."""

from bae.cli.live.display import LineStatus, LiveStatus, Status, status_for

__all__ = ["LineStatus", "LiveStatus", "Status", "status_for"]
