"""The `Dep` and `Recall` parameters of tools, which bae fills and the model does not see. Also
calls of functions that may raise an error for the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from bae.exceptions import ToolServerError, text_of
from bae.invoke import call_once
from bae.place import Place
from bae.resolver import failure_of
from bae.sharing import Dataflow
from bae.tools import ToolError, ToolInterrupted

if TYPE_CHECKING:
    from bae.calls import CallPlan, Input
    from bae.run import Run
    from bae.tool_conversation import Conversation

ACCEPT: Final = "accept="
"""The name for the function in `Tools(accept=…)` among the tools; no tool can have it."""
BEFORE_ROUND: Final = "before_round="
"""The name for the function in `Tools(before_round=…)` among the tools."""


class ToolInputs:
    """Fills the parameters of tools. `within` is the run that resolves them."""

    def __init__(self, conversation: Conversation, within: Run) -> None:
        self.outside: set[str] = set()
        """The tools that only this run knows."""
        self._run, self._within, self._plan = conversation.run, within, conversation.plan
        self._asker, self._step = conversation.asker, conversation.step
        self._field = conversation.field.name
        self._filled: dict[str, dict[str, Any]] = {}

    async def fill(self, tools: Iterable[tuple[str, Input]]) -> dict[str, dict[str, Any]]:
        """The arguments that bae fills, by tool; computed once in a conversation."""
        new = {name: each for name, each in tools if name not in self._filled}
        wanted: list[tuple[tuple[str, ...], Input]] = []
        for name, each in new.items():
            self._filled[name] = {}
            for parameter, recall in each.call.recalls:
                place = self.place(name, parameter)
                for value in recall.take(self._run_for(name), self._plan.node, place):
                    self._filled[name][parameter] = value
            wanted += [((name, parameter), below) for parameter, below in each.call.inputs]
        try:
            for (name, parameter), value in (await self.resolve(wanted)).items():
                self._filled[name][parameter] = value
        except BaseException:
            for name in new:
                del self._filled[name]
            raise
        return self._filled

    async def resolve(self, wanted: Sequence[tuple[tuple[str, ...], Input]]) -> dict[Any, Any]:
        """The values of inputs, by their path: the tool, and a parameter of it."""
        if not wanted:
            return {}
        flow = self._within.flow = flow_of(self._run)
        pending = [
            flow.dependency(each, self._run_for(way[0]), self._plan.node, self.place(*way))
            for way, each in wanted
        ]
        failed = await flow.gather(pending)
        if failed is not None:
            if isinstance(failed.error, ToolServerError):
                failed.error.path = f"{self._plan.name}.{self._field}"
                raise failed.error
            raise failure_of(self._plan, self._field, failed)
        return {way: value.value for (way, _), value in zip(wanted, pending, strict=True)}

    def _run_for(self, tool: str) -> Run:
        """The run that resolves the inputs of a tool. A tool that only this run knows has no place
        that a journal could read later."""
        if tool not in self.outside and tool not in (ACCEPT, BEFORE_ROUND):
            return self._within
        run = self._within.inside(self._within.path)
        run.step, run.trace = self._step, self._within.trace
        run.writer = self._run.writer.outside(run.path, self._step, self._asker)
        run.past = self._run.past.outside()
        return run

    def place(self, *way: str) -> Place:
        """The place of a tool, or of a parameter of it."""
        parameter = "".join(f"({name})" for name in way)
        return Place(self._run.path, self._step, self._plan.name, self._field, parameter)


def flow_of(run: Run) -> Dataflow:
    """The dataflow of a run; a new dataflow if the graph itself needs none."""
    if run.flow is None:
        run.flow = Dataflow(run.options.dep_cache)
    return run.flow


async def call_for_model(
    call: CallPlan, inline: bool, arguments: dict[str, Any], run: Run
) -> tuple[bool, Any]:
    """Call a function once. An error for the LM is returned, so that it is not retried."""
    try:
        return False, await call_once(call, inline, arguments, flow_of(run))
    except (ToolError, ToolInterrupted) as error:
        return True, error
    except ExceptionGroup as group:  # from tasks that the function has started
        _, others = group.split(ToolError)
        if others is not None:
            raise
        return True, ToolError("; ".join(dict.fromkeys(map(text_of, _each_error(group)))))


def _each_error(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _each_error(cast("BaseExceptionGroup[Any]", error))
        else:
            yield error
