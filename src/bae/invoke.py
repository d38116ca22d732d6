"""Calls the function of a `CallPlan`, with the timeout and the retries of its marker. Sync
functions run in threads and async functions on the event loop. Generators and context managers are
opened, and closed later by their owner."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextvars import copy_context
from functools import partial
from types import CoroutineType
from typing import Any, Final, Protocol, cast

from bae.calls import CallPlan
from bae.exceptions import CallTimeout, JournalError
from bae.markers import FUNCTION_TIMEOUT, Dep, Map
from bae.run import Run, Waiting
from bae.tasks import Closer, opened_in_task
from bae.threads import in_thread, in_thread_to_the_end

FIRST_PAUSE = 0.1
"""Seconds before the first retry. Each further pause is twice as long, up to `LONGEST_PAUSE`."""
LONGEST_PAUSE = 5.0
"""The longest pause before a retry, in seconds."""


class Opened(Protocol):
    """The owner that closes the generators and context managers that a call opens."""

    def on_close(self, name: str, closer: Closer) -> None:
        """Register the function that closes what `name` has opened."""
        ...


def invoke(
    call: CallPlan, marker: Dep | Map, arguments: dict[str, Any], opened: Opened, run: Run
) -> Coroutine[Any, Any, Any]:
    """Call a function with `arguments`, with the timeout and the retries of its marker."""
    return call_within_bounds(
        call, marker, lambda: call_once(call, marker.inline, arguments, opened), run
    )


async def call_within_bounds(
    call: CallPlan,
    marker: Dep | Map,
    once: Callable[[], Awaitable[Any]],
    run: Run,
    *,
    late_is_final: bool = False,
) -> Any:
    """Call `once` with the timeout and the retries of the marker.

    With `late_is_final`, a call that took too long is not retried, because its effect may already
    have happened or may still happen.
    """
    timeout = marker.timeout
    if timeout is ...:
        timeout = None if call.kind == "graph" else FUNCTION_TIMEOUT
    pause = FIRST_PAUSE
    tries = marker.retries
    while True:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                return await once()
        except (Waiting, JournalError):
            raise
        except Exception as error:
            if (waiting := Waiting.inside(error)) is not None:
                raise waiting from error
            failure = error
            # The function itself may also raise a TimeoutError, which is an ordinary failure.
            if isinstance(error, TimeoutError) and limit.expired():
                failure = CallTimeout(f"{call.name} took longer than its bound of {timeout:g} s")
                tries = 0 if late_is_final else tries
        if tries == 0:
            raise failure
        tries -= 1
        await asyncio.sleep(pause)
        await run.writer.confirm()
        pause = min(pause * 2, LONGEST_PAUSE)


async def call_once(call: CallPlan, inline: bool, arguments: dict[str, Any], opened: Opened) -> Any:
    """Call a function once with `arguments`. If one of them is an LM, and a question to this LM
    waits for a person, raise `Waiting`, even if the function has caught that exception."""
    lm = arguments.get(call.lm_parameters[0]) if call.lm_parameters else None
    if lm is None:
        return await _call_by_kind(call, inline, arguments, opened)
    with lm.waited_for():
        return await _call_by_kind(call, inline, arguments, opened)


async def _call_by_kind(
    call: CallPlan, inline: bool, arguments: dict[str, Any], opened: Opened
) -> Any:
    args, kwargs = (), arguments
    if call.positional:
        args = tuple(arguments[name] for name in call.positional if name in arguments)
        kwargs = {k: v for k, v in arguments.items() if k not in call.positional}
    match call.kind:
        case "async":
            value = call.fn(*args, **kwargs)
            return await value if _is_awaitable(value) else value
        case "async_generator":
            return await _open_async_generator(call, call.fn(*args, **kwargs), opened)
        case "generator":
            return await _open_generator(call, call.fn(*args, **kwargs), inline, opened)
        case _:  # "context" too: a sync function may block before it returns the manager
            if inline:
                value = call.fn(*args, **kwargs)
            else:
                value = await in_thread(call.fn, *args, **kwargs)
            if call.kind == "context":
                return await _open_context(call, value, inline, opened)
            # A sync callable may return a coroutine, such as a lambda that calls an async function.
            return await value if _is_awaitable(value) else value


def _is_awaitable(value: object) -> bool:
    # Nearly every awaitable is a coroutine. The general check takes longer than a short call.
    return type(value) is CoroutineType or inspect.isawaitable(value)


_END: Final = object()


async def _open_async_generator(
    call: CallPlan, generator: AsyncGenerator[Any, None], opened: Opened
) -> Any:
    async def enter() -> Any:
        value = await anext(generator, _END)
        if value is _END:
            raise _yield_error(call, "nothing")
        return value

    async def leave(_: BaseException | None) -> None:
        if await anext(generator, _END) is not _END:
            await generator.aclose()
            raise _yield_error(call, "more than once")

    return await opened_in_task(enter, leave, partial(opened.on_close, call.name))


async def _open_generator(
    call: CallPlan, generator: Generator[Any, None, None], inline: bool, opened: Opened
) -> Any:
    # Open and close in the same context, so that the generator can reset context variables.
    in_context = copy_context().run

    async def close(_: BaseException | None) -> None:
        if await _call_then(in_context, next, generator, _END, inline=inline) is not _END:
            generator.close()
            raise _yield_error(call, "more than once")

    def remember(value: Any) -> None:
        if value is not _END:
            opened.on_close(call.name, close)

    value = await _call_then(in_context, next, generator, _END, inline=inline, then=remember)
    if value is _END:
        raise _yield_error(call, "nothing")
    return value


async def _open_context(call: CallPlan, manager: Any, inline: bool, opened: Opened) -> Any:
    if inspect.isawaitable(manager):
        manager = await manager
    if inspect.isgenerator(manager):  # a decorator may return the generator itself
        return await _open_generator(call, cast(Any, manager), inline, opened)
    if inspect.isasyncgen(manager):
        return await _open_async_generator(call, cast(Any, manager), opened)
    if hasattr(manager, "__aenter__"):

        async def leave(error: BaseException | None) -> None:
            await manager.__aexit__(*_exit_arguments(error))

        remember = partial(opened.on_close, call.name)
        return await opened_in_task(manager.__aenter__, leave, remember)

    in_context = copy_context().run

    async def close_sync(error: BaseException | None) -> None:
        await _call_then(in_context, manager.__exit__, *_exit_arguments(error), inline=inline)

    def entered(_: Any) -> None:
        opened.on_close(call.name, close_sync)

    return await _call_then(in_context, manager.__enter__, inline=inline, then=entered)


def _exit_arguments(error: BaseException | None) -> tuple[Any, Any, Any]:
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)


async def _call_then(
    fn: Callable[..., Any],
    *args: Any,
    inline: bool,
    then: Callable[[Any], None] | None = None,
) -> Any:
    if not inline:
        return await in_thread_to_the_end(fn, *args, then=then)
    value = fn(*args)
    if then is not None:
        then(value)
    return value


def _yield_error(call: CallPlan, count: str) -> RuntimeError:
    return RuntimeError(
        f"{call.name} yielded {count}: a generator dependency yields its one value, then cleans up"
    )
