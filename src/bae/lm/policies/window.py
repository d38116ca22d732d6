"""How many requests and tokens a span of time holds, and when the next fits. Nothing here waits;
`rate.py` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter


class Sent:
    """A request that was sent: when, and with how many tokens as far as is known by now."""

    __slots__ = ("at", "counted", "requests", "tokens")

    def __init__(self, at: float, tokens: int, requests: int = 1) -> None:
        self.at = at
        self.tokens = tokens
        self.requests = requests
        self.counted = True


class Window:
    """What was sent in the last `per` seconds, with limits on it.

    No span of that length ever holds more than the limits. That is stricter than a bucket which
    is refilled while it is emptied, and right for providers that count by the minute, too.
    """

    def __init__(self, requests: int | None, tokens: int | None, per: float) -> None:
        self.limits = requests, tokens
        self.per = per
        self.requests = 0
        self.tokens = 0
        self._sent: deque[Sent] = deque()

    def wait(self, now: float, tokens: int) -> float:
        """Seconds until a request with so many tokens fits. One that is larger than the limit by
        itself fits when there is nothing else: its size is an estimate."""
        self.forget(now)
        most_requests, most_tokens = self.limits
        requests, there = self.requests, self.tokens
        at = now
        for old in self._sent:
            fits = most_requests is None or requests < most_requests
            if fits and (most_tokens is None or there + tokens <= most_tokens or not there):
                break
            requests -= old.requests
            there -= old.tokens
            at = old.at + self.per
        return at - now

    def add(self, now: float, tokens: int) -> Sent:
        """Count a request that is sent now."""
        sent = Sent(now, tokens)
        self._sent.append(sent)
        self.requests += 1
        self.tokens += tokens
        return sent

    def correct(self, sent: Sent, requests: int, tokens: int) -> None:
        """Put right what a request came to, now that it is known."""
        if sent.counted:
            self.requests += requests - sent.requests
            self.tokens += tokens - sent.tokens
        sent.requests, sent.tokens = requests, tokens

    def least_wait(self, now: float, requests: int, tokens: int) -> float:
        """Seconds until so many requests, with so many tokens in all, can have been sent, the last
        of them too. With limits on tokens it may take longer: what does not fit into the rest of
        a span waits for the next."""
        self.forget(now)
        most_requests, most_tokens = self.limits
        wait = 0.0
        if most_requests is not None:
            wait = self._until(now, most_requests, self.requests, requests, _requests)
        if most_tokens is not None:
            wait = max(wait, self._until(now, most_tokens, self.tokens, tokens, _tokens))
        return wait

    def _until(
        self, now: float, most: int, there: int, added: int, size: Callable[[Sent], int]
    ) -> float:
        # So much goes through in every span, and the rest when enough of what is there is old.
        spans = max(0, added - 1) // most
        at = now
        for old in self._sent:
            if there + added - spans * most <= most:
                break
            there -= size(old)
            at = old.at + self.per
        return at - now + spans * self.per

    def forget(self, now: float) -> None:
        """Let go of what is too long ago to matter."""
        while self._sent and self._sent[0].at + self.per <= now:
            old = self._sent.popleft()
            self.requests -= old.requests
            self.tokens -= old.tokens
            old.counted = False


_requests: Callable[[Sent], int] = attrgetter("requests")
_tokens: Callable[[Sent], int] = attrgetter("tokens")
