"""The `Dep` and `Recall` parameters of tools, which bae fills and the model does not see. This
module also calls functions whose errors the model may read."""

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
"""The name of the function in `Tools(accept=…)` among the tools. No tool can have this name."""
BEFORE_ROUND: Final = "before_round="
"""The name of the function in `Tools(before_round=…)` among the tools. No tool can have this
name."""


class ToolInputs:
    """Fills the `Dep` and `Recall` parameters of tools. `within` is the run that resolves them."""

    def __init__(self, conversation: Conversation, within: Run) -> None:
        self.outside: set[str] = set()
        """The names of tools that were found in this run, so the plan of the node lacks them."""
        self._run, self._within, self._plan = conversation.run, within, conversation.plan
        self._asker, self._step = conversation.asker, conversation.step
        self._field = conversation.field.name
        self._filled: dict[str, dict[str, Any]] = {}

    async def fill(self, tools: Iterable[tuple[str, Input]]) -> dict[str, dict[str, Any]]:
        """Return the arguments that bae fills, by tool. Each argument is computed once for the
        conversation."""
        new = {name: tool for name, tool in tools if name not in self._filled}
        inputs: list[tuple[tuple[str, ...], Input]] = []
        for name, tool in new.items():
            self._filled[name] = {}
            for parameter, recall in tool.call.recalls:
                place = self.place(name, parameter)
                for value in recall.take(self._run_for(name), self._plan.node, place):
                    self._filled[name][parameter] = value
            inputs += [((name, parameter), below) for parameter, below in tool.call.inputs]
        try:
            for (name, parameter), value in (await self.resolve(inputs)).items():
                self._filled[name][parameter] = value
        except BaseException:
            for name in new:
                del self._filled[name]
            raise
        return self._filled

    async def resolve(self, wanted: Sequence[tuple[tuple[str, ...], Input]]) -> dict[Any, Any]:
        """Return the values of inputs by path. A path is the name of a tool, with the name of a
        parameter after it if the value is for a parameter."""
        if not wanted:
            return {}
        flow = self._within.flow = flow_of(self._run)
        pending = [
            flow.dependency(input_, self._run_for(path[0]), self._plan.node, self.place(*path))
            for path, input_ in wanted
        ]
        failed = await flow.gather(pending)
        if failed is not None:
            if isinstance(failed.error, ToolServerError):
                failed.error.path = f"{self._plan.name}.{self._field}"
                raise failed.error
            raise failure_of(self._plan, self._field, failed)
        return {path: value.value for (path, _), value in zip(wanted, pending, strict=True)}

    def _run_for(self, tool: str) -> Run:
        """Return the run that resolves a tool's inputs. The plan of the node lacks the inputs of
        `accept`, of `before_round`, and of tools that were found in the run. A journal could not
        read these inputs later, so the writer of their run does not store them."""
        if tool not in self.outside and tool not in (ACCEPT, BEFORE_ROUND):
            return self._within
        run = self._within.inside(self._within.path)
        run.step, run.trace = self._step, self._within.trace
        run.writer = self._run.writer.outside(run.path, self._step, self._asker)
        run.past = self._run.past.outside()
        return run

    def place(self, *path: str) -> Place:
        """Return the place of a tool, or of a tool's parameter. `path` has their names."""
        parameter = "".join(f"({name})" for name in path)
        return Place(self._run.path, self._step, self._plan.name, self._field, parameter)


def flow_of(run: Run) -> Dataflow:
    """Return the dataflow of a run. If the graph itself needs none, create it now."""
    if run.flow is None:
        run.flow = Dataflow(run.options.dep_cache)
    return run.flow


async def call_for_model(
    call: CallPlan, inline: bool, arguments: dict[str, Any], run: Run
) -> tuple[bool, Any]:
    """Call a function once. Return whether it raised an error for the LLM, and the error or the
    result. Because such an error is returned, the call is not retried."""
    try:
        return False, await call_once(call, inline, arguments, flow_of(run))
    except (ToolError, ToolInterrupted) as error:
        return True, error
    except ExceptionGroup as group:  # from tasks that the function has started
        _, others = group.split(ToolError)
        if others is not None:
            raise
        return True, ToolError("; ".join(dict.fromkeys(map(text_of, _flatten_errors(group)))))


def _flatten_errors(group: BaseExceptionGroup[Any]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flatten_errors(cast("BaseExceptionGroup[Any]", error))
        else:
            yield error
