"""The events of a team as a feed for `bae.journal.subscribe`. Subscribers get the events in order,
from any number on, and get the events of other processes too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bae.journal import Feed, FeedItem, FeedPage
from bae.team.events import StoredEvent
from bae.team.models import TeamError

if TYPE_CHECKING:
    from bae.team.store import Store


class TeamFeed(Feed[StoredEvent]):
    """The numbered events of a project. `store.feed(project_id)` creates a feed for
    `bae.journal.subscribe`. The feed has no end. Numbers grow and are above 0."""

    def __init__(self, store: Store, project_id: int) -> None:
        super().__init__()
        self.project_id = project_id
        self._store = store

    async def read(self, after: int, limit: int) -> FeedPage[StoredEvent]:
        """Read a page of events, and the number of the project's last event."""
        last = await self._store.last_event(self.project_id)
        events = await self._store.events(self.project_id, after, most=limit) if limit else []
        return FeedPage([FeedItem(event.number, event) for event in events], last)

    async def version(self) -> int | None:
        """Return a number that changes when another process or another store has written to the
        database."""
        return await self._store.data_version()

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` each time this store has stored events. Returns a function that ends the
        calls."""
        return self._store.on_event(wake)


def unknown_event(number: int, last: int) -> TeamError:
    """Return the error for a client that wants to continue after an event that does not exist."""
    return TeamError(
        f"there is no event {number} to continue after: the last one is {last}",
        code="bae-team-unknown",
        fix="start with after=0; the number may be from another database",
    )
