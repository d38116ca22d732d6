"""How many requests and tokens a span of time holds, and when the next fits. Nothing here waits;
`rate.py` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


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

    def wait_behind(self, now: float, queue: Sequence[int], tokens: int) -> float:
        """Seconds until a request fits that has others before it, of so many tokens each."""
        self.forget(now)
        later = Window(*self.limits, self.per)
        later.requests, later.tokens = self.requests, self.tokens
        later._sent.extend(Sent(s.at, s.tokens, s.requests) for s in self._sent)
        at = now
        for size in queue:
            at += later.wait(at, size)
            later.add(at, size)
        return at + later.wait(at, tokens) - now

    def forget(self, now: float) -> None:
        """Let go of what is too long ago to matter."""
        while self._sent and self._sent[0].at + self.per <= now:
            old = self._sent.popleft()
            self.requests -= old.requests
            self.tokens -= old.tokens
            old.counted = False
