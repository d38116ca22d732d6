"""Sharing of calls. A run calls a dependency once, for all fields and functions that need it. If
the arguments of the dependency come from the run, the run calls it once for equal arguments."""

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
    recalls_of,
    siblings_of,
    walk_recalls,
)
from bae.draft import validate_values
from bae.exceptions import RecallError
from bae.invoke import invoke
from bae.place import Place
from bae.records import NOTHING
from bae.run import Run
from bae.scheduling import Compute, PendingValue, Scheduler, make_finished_value

if TYPE_CHECKING:
    from contextvars import Context

    from bae.app_scope import Opening
    from bae.language_model import LM
    from bae.node import Node
    from bae.plan import FieldPlan


@dataclass(slots=True, eq=False, repr=False)
class SharedValue(PendingValue):
    """The value of a dependency. Fields and functions that need the same `key` share the value."""

    key: Hashable = None
    is_of_app: bool = False
    """Whether the value belongs to the app, and outlives the run."""


@dataclass(slots=True, eq=False, repr=False)
class LookUp(SharedValue):
    """The value of a dependency whose arguments come from the run."""

    dep_input: Input | None = None
    own: dict[str, Any] = field(default_factory=dict[str, Any])
    """The arguments of the call that come from the trace, by parameter."""
    below: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])
    """Arguments from the trace for the functions whose results the call takes, by function,
    parameter and marker."""
    first: PendingValue | None = None
    """Another look-up with equal arguments, whose value this look-up shares."""

    def arguments(self) -> dict[str, Any]:
        """Return the values of the inputs, and the arguments that come from the run."""
        inputs = {parameter: below.value for parameter, below in self.inputs}
        return inputs if self.asked is None else {**inputs, **self.asked.own}


class Dataflow(Scheduler):
    """A scheduler that shares calls. `cache` has values by dependency. It begins with the values
    that the caller passed, and the scheduler adds the values that it computes."""

    opening: Opening | None = None
    """The `graph.open()` block that the run is in."""

    def __init__(self, cache: dict[Any, Any] | None = None, context: Context | None = None) -> None:
        super().__init__(context)
        self.cache: dict[Any, Any] = {} if cache is None else cache
        self._pending: dict[Hashable, PendingValue] = {}
        self._opened: list[Hashable] = []
        self._given = frozenset(self.cache)
        self._recorded_given: set[Hashable] = set()
        self._called_at: dict[Arguments, str] = {}
        """The place that a function was called for, by the function's arguments."""
        self._unstored: set[Hashable] = set()
        """The keys of values whose writer does not store values, such as the writer for classes
        outside the graph. These values are recorded when another place needs them."""

    def dependency(
        self, dep_input: Input, run: Run, node_type: type[Node], place: Place
    ) -> PendingValue:
        """Return the value of a dependency: an existing value, or a new value that is now computed.

        The caller is a user of the value until it calls `release`, or the value is done.
        """
        call, marker = dep_input.call, dep_input.marker
        if dep_input.bound or call.by_value:
            return self.look_up(dep_input, run, node_type, place)
        # A value that the caller passed replaces the function even with `cache=False`.
        key = call.key if marker.cache or call.key in self._given else None
        if key is not None:
            if key in self.cache:
                if key in self._given or key in self._unstored:
                    self._record_given(key, dep_input, run, node_type, place)
                return make_finished_value(run, node_type, place, self.cache[key])
            pending = self._pending.get(key)
            if pending is not None:
                pending.users += 1
                return pending
        elif (recorded := run.past.value(place, node_type, early=True)) is not NOTHING:
            return make_finished_value(run, node_type, place, recorded)
        opening = self.opening if marker.scope == "app" else None
        inputs = self._add_inputs(call, run, node_type, place) if opening is None else []
        compute = self._make_compute(dep_input, key, opening)
        value = SharedValue(run, node_type, place, call.name, "dep", compute, inputs, call)
        value.key, value.is_of_app = key, opening is not None
        if key is not None:
            self._pending[key] = value
        return self.add(value)

    def _make_compute(
        self, dep_input: Input, key: Hashable = None, opening: Opening | None = None
    ) -> Compute:
        """Return the function that calls a dependency, once the inputs are known."""
        call, marker = dep_input.call, dep_input.marker

        async def compute(pending: PendingValue) -> Any:
            if opening is not None:
                return await opening.value(dep_input, pending)
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
        dep_input: Input,
        run: Run,
        node_type: type[Node],
        place: Place,
        bound: Sequence[tuple[str, PendingValue]] = (),
    ) -> PendingValue:
        """Return the value of a dependency whose arguments come from the run. Calls with equal
        arguments share a value. `bound` has the arguments that come from fields of the node."""
        call = dep_input.call
        value = LookUp(run, node_type, place, call.name, inputs=bound, call=call)
        value.compute, value.dep_input, value.settle = (
            self._make_compute(dep_input),
            dep_input,
            self._settle,
        )
        if not self._prepare(value, dep_input):
            return value
        value.inputs = [*bound, *self._add_inputs(call, run, node_type, place)]
        return self.add(value)

    def _add_inputs(
        self, call: CallPlan, run: Run, node_type: type[Node], place: Place
    ) -> list[tuple[str, PendingValue]]:
        """Return the values of the dependencies that a call takes as parameters."""
        return [
            (name, self.dependency(below, run, node_type, place.below(name)))
            for name, below in call.inputs
        ]

    def add_map(self, pending: PendingValue, field: FieldPlan) -> PendingValue:
        """Add a map whose only inputs so far are fields of the node. The other inputs are added
        here: recalled values, and the dependencies of the function."""
        place, run, node_type = pending.place, pending.run, pending.node_type
        inputs = [*pending.inputs]
        try:
            for name, recall in recalls_of(field):
                parameter_place = place.below(name)
                for value in recall.take(run, node_type, parameter_place):
                    inputs.append(
                        (name, make_finished_value(run, node_type, parameter_place, value))
                    )
        except RecallError as error:
            return self._fail(pending, error)
        inputs += self._add_inputs(cast(CallPlan, pending.call), run, node_type, place)
        pending.inputs = inputs
        return self.add(pending)

    def _prepare(self, value: LookUp, dep_input: Input) -> bool:
        """Find the arguments from the trace. Return whether the value is still to be computed: it
        was not passed by the caller, is not recorded, and no argument has failed."""
        key, place, node_type = dep_input.call.key, value.place, value.node_type
        if key in self._given:
            self._record_given(key, dep_input, value.run, node_type, place)
            self._end(value, self.cache[key])
            self._release_inputs(value)
            return False
        try:
            self._recall(dep_input, value)
        except RecallError as error:
            self._fail(value, error)
            return False
        for name, below in value.inputs:
            if below.error is not None:
                self._end(value, error=below.error, failed_input=(name, below))
                return False
        if not all(below.done for _, below in value.inputs):
            return True
        if not self._settle(value):
            return False
        recorded = value.run.past.value(place, node_type, True, value.asked)
        if recorded is NOTHING:
            return True
        self._end(value, recorded)
        return False

    def _recall(self, dep_input: Input, value: LookUp) -> None:
        """Find the arguments from the trace, of the function itself and of the functions whose
        results it takes. Only the function's own arguments are recorded here, because each call
        records its own."""
        place = value.place
        for route, key, recall in walk_recalls(dep_input):
            where, is_own = place._replace(parameter=place.parameter + route), route.count("(") == 1
            for argument in recall.take(value.run, value.node_type, where, is_own):
                if is_own:
                    value.own[recall.name] = argument
                else:
                    value.below[key] = argument

    def _settle(self, value: LookUp) -> bool:
        """Return whether to call the function for this value. If another look-up has equal
        arguments, this value shares the result instead. The scheduler calls this when all arguments
        from the run are known."""
        dep_input = cast(Input, value.dep_input)
        try:
            siblings = sibling_values(value, dict(siblings_of(dep_input)))
        except Exception as error:  # a validator rejects the argument, and later the field itself
            self._fail(value, error)
            return False
        value.settle = None
        value.asked = arguments = Arguments(
            dep_input.call.key, {**value.own, **siblings}, value.below
        )
        if not dep_input.marker.cache:
            return True
        if arguments in self.cache:
            if arguments in self._given or arguments in self._unstored:
                self._record_given(arguments, dep_input, value.run, value.node_type, value.place)
                self._end(value, self.cache[arguments])
            else:
                self._share(value, arguments, self.cache[arguments])
            return False
        first = self._pending.get(arguments)
        if first is None:
            value.key, self._pending[arguments] = arguments, value
            self._called_at[arguments] = str(value.place)
            return True
        value.first = first
        if first.done:
            self._share(value, arguments, first.value, first.error, first.failed_input)
        else:
            first.users += 1
            first.dependents.append(value)
            value.inputs, value.missing = [*value.inputs, ("", first)], 1
        return False

    def _share(
        self,
        value: LookUp,
        arguments: Arguments,
        result: Any = None,
        error: BaseException | None = None,
        failed_input: tuple[str, PendingValue] | None = None,
    ) -> None:
        """End a value with the result or error of another value's call."""
        called_at = self._called_at.get(arguments, "")
        if called_at != str(value.place) and not isinstance(error, asyncio.CancelledError):
            value.run.writer.write(value.make_end_record(result, error, called_at=called_at))
        self._end(value, result, error, failed_input)

    def _fail(self, pending: PendingValue, error: Exception) -> PendingValue:
        """End a value with the error that its arguments raised."""
        pending.run.writer.write(pending.make_end_record(None, error))
        self._end(pending, error=error)
        return pending

    def add_recorded_values(
        self,
        values: Mapping[Hashable, Any],
        called_at: Mapping[Arguments, str],
        outside: Iterable[Hashable],
    ) -> None:
        """Add the recorded values of dependencies, by key. A recorded value replaces a value that
        the caller passes now.

        - `called_at`: the places of calls with arguments from the run, by their arguments.
        - `outside`: the keys of values that were computed for classes outside the graph.
        """
        self.cache.update(values)
        self._unstored.update(outside)
        self._given = self._given.difference(values)
        self._called_at.update(called_at)

    def forget_failures(self) -> None:
        """Forget the failures of dependencies, so that the next use calls the dependency again."""
        for key in [key for key, pending in self._pending.items() if pending.done]:
            del self._pending[key]

    async def close(self, error: BaseException | None) -> BaseException | None:
        """Close all opened resources, and remove them from the cache, which the caller may reuse.
        Return the first error that a closer raised."""
        for key in self._opened:
            self.cache.pop(key, None)
        return await super().close(error)

    def _take_input(self, pending: PendingValue, below: PendingValue) -> None:
        if type(pending) is LookUp and pending.first is below:
            arguments = cast(Arguments, pending.asked)
            self._share(pending, arguments, below.value, below.error, below.failed_input)
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
        self, key: Hashable, dep_input: Input, run: Run, node_type: type[Node], place: Place
    ) -> None:
        writer = run.writer
        if dep_input.marker.cache:
            recorded = key, type(writer)
            if recorded in self._recorded_given:
                return
            self._recorded_given.add(recorded)
        shared = PendingValue(run, node_type, place, dep_input.call.name)
        writer.write_shared_value(shared.make_end_record(self.cache[key]), key in self._given)


def lm_of(pending: PendingValue, item: int | None = None) -> LM | None:
    """Return the LM that a dependency gets as a parameter; None if the run has no LM. `item` is the
    number of the item in a map."""
    from bae.given_lm import GivenLM

    run, asker = pending.run, pending.asker._replace(item=item)
    if run.lm is None:
        return None
    return GivenLM(run, pending.place.step, asker, lambda: run.lm)


def sibling_values(pending: PendingValue, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of a call that come from fields of the node, by parameter. The values
    are validated, as the node will have them. `names` has the field of each such parameter."""
    values: dict[str, Any] = {}
    for parameter, below in pending.inputs:
        name = names.get(parameter)
        if name is not None:
            value = {name: below.value}
            validated = value if below.is_validated else validate_values(pending.node_type, value)
            values[parameter] = validated[name]
    return values
