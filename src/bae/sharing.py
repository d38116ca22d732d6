"""Sharing of calls: a dependency is called once for all that ask for it; if its arguments come from
the run, once for equal arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from bae.arguments import Arguments
from bae.calls import (
    OPENING,
    CallPlan,
    Input,
    recalled_behind,
    recalls_of,
    siblings_of,
)
from bae.draft import validate_values
from bae.exceptions import RecallError
from bae.invoke import invoke
from bae.place import Place
from bae.records import NOTHING
from bae.run import Run
from bae.scheduling import Compute, PendingValue, Scheduler, known_value

if TYPE_CHECKING:
    from contextvars import Context

    from bae.app_scope import Opening
    from bae.language_model import LM
    from bae.node import Node
    from bae.plan import FieldPlan


@dataclass(slots=True, eq=False, repr=False)
class SharedValue(PendingValue):
    """The value of a dependency. All that ask for the same `key` share it."""

    key: Hashable = None
    is_of_app: bool = False
    """Whether the value belongs to the app, and outlives the run."""


@dataclass(slots=True, eq=False, repr=False)
class LookUp(SharedValue):
    """The value of a dependency whose arguments come from the run."""

    wanted: Input | None = None
    own: dict[str, Any] = field(default_factory=dict[str, Any])
    """The arguments that come from the trace."""
    below: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    """The arguments of the calls below."""
    first: PendingValue | None = None
    """Another look-up with equal arguments, whose value this is."""

    def arguments(self) -> dict[str, Any]:
        """The values of the inputs, and the arguments that come from the run."""
        inputs = {parameter: below.value for parameter, below in self.inputs}
        return inputs if self.asked is None else {**inputs, **self.asked.own}


class Dataflow(Scheduler):
    """A scheduler that shares calls. `cache` has values by dependency: from the caller, and
    computed."""

    opening: Opening | None = None
    """The `graph.open()` around the run."""

    def __init__(self, cache: dict[Any, Any] | None = None, context: Context | None = None) -> None:
        super().__init__(context)
        self.cache: dict[Any, Any] = {} if cache is None else cache
        self._pending: dict[Hashable, PendingValue] = {}
        self._opened: list[Hashable] = []
        self._given = frozenset(self.cache)
        self._recorded_given: set[Hashable] = set()
        self._called_at: dict[Arguments, str] = {}
        """The places that functions were called for, by their arguments."""
        self._unstored: set[Hashable] = set()
        """Values that were computed where nothing is stored; recorded when another place asks."""

    def dependency(
        self, wanted: Input, run: Run, node_type: type[Node], place: Place
    ) -> PendingValue:
        """The value of a dependency: an existing value, or a new one.

        The caller counts as a user of it until it calls `release`, or the value is done.
        """
        call, marker = wanted.call, wanted.marker
        if wanted.bound or call.by_value:
            return self.look_up(wanted, run, node_type, place)
        # A value from the caller replaces the function, however it is asked for.
        key = call.key if marker.cache or call.key in self._given else None
        if key is not None:
            if key in self.cache:
                if key in self._given or key in self._unstored:
                    self._record_given(key, wanted, run, node_type, place)
                return known_value(run, node_type, place, self.cache[key])
            pending = self._pending.get(key)
            if pending is not None:
                pending.users += 1
                return pending
        elif (known := run.past.value(place, node_type, early=True)) is not NOTHING:
            return known_value(run, node_type, place, known)
        opening = self.opening if marker.scope == "app" else None
        inputs = self._inputs_of(call, run, node_type, place) if opening is None else []
        compute = self._caller(wanted, key, opening)
        value = SharedValue(run, node_type, place, call.name, "dep", compute, inputs, call)
        value.key, value.is_of_app = key, opening is not None
        if key is not None:
            self._pending[key] = value
        return self.add(value)

    def _caller(
        self, wanted: Input, key: Hashable = None, opening: Opening | None = None
    ) -> Compute:
        """The function that calls a dependency once its inputs are known."""
        call, marker = wanted.call, wanted.marker

        async def compute(pending: PendingValue) -> Any:
            if opening is not None:
                return await opening.value(wanted, pending)
            arguments = pending.arguments() if pending.inputs or pending.asked else {}
            if call.graph is not None:
                from bae.runner import run_inside

                path = str(pending.place)
                if key is not None:
                    path = pending.run.past.graph_paths.get(key, path)
                return await run_inside(call, marker, path, pending.run, (), arguments)
            if call.lm_parameters:
                arguments |= dict.fromkeys(call.lm_parameters, lm_of(pending))
            return await invoke(call, marker, arguments, self, pending.run)

        return compute

    def look_up(
        self,
        wanted: Input,
        run: Run,
        node_type: type[Node],
        place: Place,
        bound: Sequence[tuple[str, PendingValue]] = (),
    ) -> PendingValue:
        """The value of a dependency whose arguments come from the run: of an earlier call with
        equal arguments, or a new value. `bound` are the arguments that come from fields of the
        node."""
        call = wanted.call
        value = LookUp(run, node_type, place, call.name, inputs=bound, call=call)
        value.compute, value.wanted, value.settle = self._caller(wanted), wanted, self._settle
        if not self._prepare(value, wanted):
            return value
        value.inputs = [*bound, *self._inputs_of(call, run, node_type, place)]
        return self.add(value)

    def _inputs_of(
        self, call: CallPlan, run: Run, node_type: type[Node], place: Place
    ) -> list[tuple[str, PendingValue]]:
        """The values of the dependencies that a call takes as parameters."""
        return [
            (name, self.dependency(below, run, node_type, place.below(name)))
            for name, below in call.inputs
        ]

    def add_map(self, pending: PendingValue, field: FieldPlan) -> PendingValue:
        """Add a map whose inputs are only fields of the node."""
        place, run, node_type = pending.place, pending.run, pending.node_type
        inputs = [*pending.inputs]
        try:
            for name, recall in recalls_of(field):
                below_it = place.below(name)
                for value in recall.take(run, node_type, below_it):
                    inputs.append((name, known_value(run, node_type, below_it, value)))
        except RecallError as error:
            return self._fail(pending, error)
        inputs += self._inputs_of(cast(CallPlan, pending.call), run, node_type, place)
        pending.inputs = inputs
        return self.add(pending)

    def _prepare(self, value: LookUp, wanted: Input) -> bool:
        """Whether a value is still to be computed, as far as its arguments are known."""
        key, place, node_type = wanted.call.key, value.place, value.node_type
        if key in self._given:
            self._record_given(key, wanted, value.run, node_type, place)
            self._end(value, self.cache[key])
            self._release_inputs(value)
            return False
        try:
            self._recall(wanted, value)
        except RecallError as error:
            self._fail(value, error)
            return False
        for name, each in value.inputs:
            if each.error is not None:
                self._end(value, error=each.error, failed_input=(name, each))
                return False
        if not all(each.done for _, each in value.inputs):
            return True
        if not self._settle(value):
            return False
        known = value.run.past.value(place, node_type, True, value.asked)
        if known is NOTHING:
            return True
        self._end(value, known)
        return False

    def _recall(self, wanted: Input, value: LookUp) -> None:
        """Find the arguments that come from the trace. The arguments of the calls below have
        records of their own."""
        place = value.place
        for way, key, recall in recalled_behind(wanted):
            where, own = place._replace(parameter=place.parameter + way), way.count("(") == 1
            for each in recall.take(value.run, value.node_type, where, own):
                if own:
                    value.own[recall.name] = each
                else:
                    value.below[key] = each

    def _settle(self, value: LookUp) -> bool:
        """Called when all arguments from the run are known. Whether to call the function for this
        value, instead of sharing another value."""
        wanted = cast(Input, value.wanted)
        try:
            given = sibling_values(value, dict(siblings_of(wanted)))
        except Exception as error:  # of a validator: the field's own value fails with it too
            self._fail(value, error)
            return False
        value.settle = None
        value.asked = asked = Arguments(wanted.call.key, {**value.own, **given}, value.below)
        if not wanted.marker.cache:
            return True
        if asked in self.cache:
            if asked in self._given or asked in self._unstored:
                self._record_given(asked, wanted, value.run, value.node_type, value.place)
                self._end(value, self.cache[asked])
            else:
                self._share(value, asked, self.cache[asked])
            return False
        first = self._pending.get(asked)
        if first is None:
            value.key, self._pending[asked] = asked, value
            self._called_at[asked] = str(value.place)
            return True
        value.first = first
        if first.done:
            self._share(value, asked, first.value, first.error, first.failed_input)
        else:
            first.users += 1
            first.dependents.append(value)
            value.inputs, value.missing = [*value.inputs, ("", first)], 1
        return False

    def _share(
        self,
        value: LookUp,
        asked: Arguments,
        result: Any = None,
        error: BaseException | None = None,
        failed_input: tuple[str, PendingValue] | None = None,
    ) -> None:
        """End a value with the result or error of the function for another value."""
        called_at = self._called_at.get(asked, "")
        if called_at != str(value.place) and not isinstance(error, asyncio.CancelledError):
            value.run.writer.write(value.ended(result, error, called_at=called_at))
        self._end(value, result, error, failed_input)

    def _fail(self, pending: PendingValue, error: Exception) -> PendingValue:
        """End a value whose arguments could not be found."""
        pending.run.writer.write(pending.ended(None, error))
        self._end(pending, error=error)
        return pending

    def take_known(
        self,
        values: Mapping[Hashable, Any],
        called_at: Mapping[Arguments, str],
        outside: Iterable[Hashable],
    ) -> None:
        """Take in recorded values of dependencies. They count, even if the caller gives others now.
        `called_at` has the places of dependencies that are called once for equal arguments, and
        `outside` those that were called for classes outside the graph."""
        self.cache.update(values)
        self._unstored.update(outside)
        self._given = self._given.difference(values)
        self._called_at.update(called_at)

    def forget_failures(self) -> None:
        """Have failed dependencies called again when they are next asked for."""
        for key in [key for key, pending in self._pending.items() if pending.done]:
            del self._pending[key]

    async def close(self, error: BaseException | None) -> BaseException | None:
        """Close what was opened. It is of no use to the caller who gave the cache."""
        for key in self._opened:
            self.cache.pop(key, None)
        return await super().close(error)

    def _take_input(self, pending: PendingValue, below: PendingValue) -> None:
        if type(pending) is LookUp and pending.first is below:
            asked = cast(Arguments, pending.asked)
            self._share(pending, asked, below.value, below.error, below.failed_input)
        else:
            super()._take_input(pending, below)

    def _keep(self, pending: PendingValue) -> None:
        if not isinstance(pending, SharedValue) or pending.key is None or pending.is_of_app:
            return
        key = pending.key
        self.cache[key] = pending.value
        if not pending.run.writer.stores:
            self._unstored.add(key)
        if pending.call is not None and pending.call.kind in OPENING:
            self._opened.append(key)
        del self._pending[key]

    def _drop(self, pending: PendingValue) -> None:
        if isinstance(pending, SharedValue) and pending.key is not None:
            self._pending.pop(pending.key, None)

    def _record_given(
        self, key: Hashable, wanted: Input, run: Run, node_type: type[Node], place: Place
    ) -> None:
        writer = run.writer
        if wanted.marker.cache:
            recorded = key, type(writer)
            if recorded in self._recorded_given:
                return
            self._recorded_given.add(recorded)
        given = PendingValue(run, node_type, place, wanted.call.name)
        writer.write_shared(given.ended(self.cache[key]), key in self._given)


def lm_of(pending: PendingValue, item: int | None = None) -> LM | None:
    """The LM for a dependency that asks for one, or for one item of a map."""
    from bae.given_lm import GivenLM

    run, asker = pending.run, pending.asker._replace(item=item)
    if run.lm is None:
        return None
    return GivenLM(run, pending.place.step, asker, lambda: run.lm)


def sibling_values(pending: PendingValue, names: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a call that are values of fields, by parameter, as the fields hold them."""
    values: dict[str, Any] = {}
    for parameter, below in pending.inputs:
        name = names.get(parameter)
        if name is not None:
            held = {name: below.value}
            whole = held if below.is_validated else validate_values(pending.node_type, held)
            values[parameter] = whole[name]
    return values
