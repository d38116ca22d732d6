"""The events of a team as a feed: in order, from any number on, including the events of other
processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bae.journal import Feed, FeedItem, FeedPage
from bae.team.events import StoredEvent
from bae.team.models import TeamError

if TYPE_CHECKING:
    from bae.team.store import Store


class TeamFeed(Feed[StoredEvent]):
    """The events of a project by number, for `bae.journal.subscribe`: `store.feed(project_id)`. The
    feed has no end. Numbers grow, and start above 0."""

    def __init__(self, store: Store, project_id: int) -> None:
        super().__init__()
        self.project_id = project_id
        self._store = store

    async def read(self, after: int, limit: int) -> FeedPage[StoredEvent]:
        """A page of events, and the number of the last event."""
        last = await self._store.last_event(self.project_id)
        events = await self._store.events(self.project_id, after, most=limit) if limit else []
        return FeedPage([FeedItem(event.number, event) for event in events], last)

    async def version(self) -> int | None:
        """A number that changes when another process or another store has written to the file."""
        return await self._store.data_version()

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` each time this store has stored events."""
        return self._store.on_event(wake)


def unknown_event(number: int, last: int) -> TeamError:
    """The error for a subscription after an unknown event."""
    return TeamError(
        f"there is no event {number} to continue after: the last one is {last}",
        code="bae-team-unknown",
        fix="start with after=0; the number may come from another file",
    )
