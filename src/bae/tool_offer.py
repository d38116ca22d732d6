"""`OfferedTools`: the tools that an LLM is offered in a conversation. Some tools are planned before
the run, other tools are found in the run. The class also calls the functions in
`Tools(before_round=…)` and `Tools(accept=…)`."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from bae.calls import Input
from bae.exceptions import BaeError, describe, text_of
from bae.hints import NOWHERE
from bae.invoke import call_within_bounds, invoke
from bae.markers import Dep
from bae.records import RoundReplied, ToolsOffered
from bae.run import Waiting
from bae.secrets import MASK
from bae.tasks import cancellations
from bae.tool_conversation import Conversation, arguments_of
from bae.tool_inputs import ACCEPT, BEFORE_ROUND, ToolInputs, call_for_model, flow_of
from bae.tool_plan import AskPlan, ToolPlan, plan_tool
from bae.tool_proof import tool_problems
from bae.tools import RESULT_LIMIT, Native, Tool, ToolServer, as_tools
from bae.unicode import readable

if TYPE_CHECKING:
    from bae.calls import CallPlan
    from bae.node import Node
    from bae.plan import NodePlan
    from bae.prompts.messages import CallPart, ToolSpec
    from bae.records import Asker
    from bae.run import Run
    from bae.tool_conversation import Round


class OfferedTools(Conversation):
    """A conversation, with the tools that the LLM is offered. `within` is the run that resolves the
    inputs of the tools."""

    def __init__(
        self,
        run: Run,
        plan: NodePlan,
        asker: Asker,
        step: int,
        question: str = "",
        within: Run | None = None,
    ) -> None:
        super().__init__(run, plan, asker, step, question)
        self.tools: dict[str, ToolPlan | AskPlan] = {}
        self.specs: tuple[ToolSpec, ...] = ()
        self._within = run if within is None else within
        self._inputs = ToolInputs(self, self._within)

    def result_limit(self, name: str) -> int:
        """Return how many characters of a tool's result the LLM reads."""
        plan = self.tools.get(name)
        return plan.tool.result_limit if isinstance(plan, ToolPlan) else RESULT_LIMIT

    def mask_arguments(self, call: CallPart) -> dict[str, Any]:
        """Return the arguments of a call, with masks in place of secrets."""
        plan, arguments = self.tools.get(call.name), arguments_of(call)
        if plan is None and self._takes_secrets:  # an unknown tool may have been sent a secret
            return dict.fromkeys(arguments, MASK)
        return plan.mask_secrets(arguments) if isinstance(plan, ToolPlan) else arguments

    @property
    def _takes_secrets(self) -> bool:
        """Whether a tool has a secret parameter that the LLM passes."""
        tools = self.tools.values()
        return any(isinstance(tool, ToolPlan) and tool.secret_parameters for tool in tools)

    def must_answer(self, is_native: bool, before: Round | None = None) -> bool:
        """Return whether the LLM has to answer in the next round, without calls. It has to if the
        limit of rounds is reached, or if a model without native tool calls repeats a call.

        With `before`, return whether the LLM had to answer in the round `before`.
        """
        finished = len(self.rounds) if before is None else before.number - 1
        if finished >= self.marker.limit:
            return True
        if is_native:
            return False
        # Rounds with a wrong answer are skipped. After a refused answer, the tools are offered.
        for number in range(finished, 0, -1):
            round_ = self.rounds[number - 1]
            if round_.calls or round_.is_refused:
                return not round_.is_refused and any(map(self._may_not_repeat, round_.repeated))
        return False

    def _may_not_repeat(self, name: str) -> bool:
        plan = self.tools.get(name)
        return not (isinstance(plan, ToolPlan) and plan.tool.repeat == "call")

    # Open the conversation.

    async def open(self, question: Callable[[], str] | None = None) -> None:
        """Find the tools that the LLM is offered, and record them if they are new or have changed.
        They are the planned tools, the tools that functions return, and the tools of servers, which
        are opened for the run. `question` returns the text of the question, for the record."""
        tools_by_name = {plan.name: plan for plan in self.field.planned}
        if self.field.pickers or self.field.servers:
            for more in await self._find_tools_in_run():
                if more.name in tools_by_name:
                    raise self.error(
                        f"two tools are named {more.name}, which the LM cannot tell apart",
                        "rename one, or give the server a prefix",
                        code="bae-tool-same-name",
                    )
                tools_by_name[more.name] = more
                self._inputs.outside.add(more.name)
        self.tools = tools_by_name
        specs = *(plan.spec for plan in tools_by_name.values()), *self.field.native_specs
        if specs == self.specs:
            return
        self.specs = specs
        offered = tuple(spec.as_json for spec in specs)
        recorded = self.run.past.tool_loop(*self._key)
        if recorded is None or recorded.tools != offered:
            if recorded is not None and recorded.tools:
                self._warn_of_change(recorded.tools, offered)
            text = question() if question is not None and self.run.writer.stores else ""
            self._write(ToolsOffered, self.plan.name, self.field.name, offered, text)

    async def _find_tools_in_run(self) -> list[ToolPlan | AskPlan]:
        inputs = [(picker.call.name, picker) for picker in self.field.pickers]
        inputs += [(server.name, opened) for server, opened in self.field.servers]
        values = await self._inputs.resolve([((name,), input_) for name, input_ in inputs])
        plans: list[ToolPlan | AskPlan] = []
        for name, _ in inputs:
            try:
                tools = as_tools(cast("Sequence[Any]", values[(name,)]))
            except TypeError as error:
                raise self.error(
                    f"{name} has to return a list of tools: {error}",
                    f"have {name} return list[Tool]",
                    code="bae-tool-invalid",
                    cause=error,
                ) from error
            for tool in tools:
                if isinstance(tool, Tool):
                    plan = plan_tool(tool, NOWHERE)
                    problems = [
                        problem for problem in tool_problems(plan) if problem.severity == "error"
                    ]
                    if plan.call.graph is not None or problems:
                        problem_text = (
                            problems[0].message
                            if problems
                            else (
                                f"{name} returned the graph {plan.name} as a tool, which has to be "
                                "known before the run"
                            )
                        )
                        fix = problems[0].fix if problems else "name it in Tools(…) itself"
                        raise self.error(problem_text, fix, code="bae-tool-invalid")
                    plans.append(plan)
                elif isinstance(tool, Native | ToolServer):
                    raise self.error(
                        f"{name} returned {tool!r}, which has to be known before the run",
                        "name it in Tools(…) itself",
                        code="bae-tool-invalid",
                    )
                else:
                    plans.append(AskPlan(tool))
        return plans

    def _warn_of_change(self, before: Sequence[Any], now: Sequence[Any]) -> None:
        import logging

        old, new = ({tool["name"]: tool for tool in tools} for tools in (before, now))
        removed = [f"{name} is gone" for name in old if name not in new]
        added = [f"{name} is new" for name in new if name not in old]
        changed = [
            f"{name} has another {' and another '.join(parts)}"
            for name in new
            if name in old
            # A redaction leaves only the name of a tool. Then no other part is compared.
            and (parts := [k for k, part in old[name].items() if part != new[name].get(k)])
        ]
        if not (removed or added or changed):
            return
        logging.getLogger("bae").warning(
            "%s.%s: its tools are not what they were when the conversation began: %s. The model "
            "reads them as they are now%s",
            self.plan.name,
            self.field.name,
            ", ".join([*removed, *added, *changed]),
            ". If that is not your change, look at what the server offers with `bae mcp list` "
            "before you let the run continue"
            if self.field.servers
            else "",
        )

    async def prepare_round(self) -> None:
        """Add the messages that the LLM reads before its next round: the text of `before_round`,
        and messages of people."""
        if self.field.before_round is not None and len(self.rounds) not in self._steered:
            text = await self._steer(self.field.before_round)
            if text:
                await self._store(RoundReplied, len(self.rounds), "steered", text)
                self._steered[len(self.rounds)] = text
                self._tell(len(self.rounds), text)
        # Last: if `before_round` ends the conversation, the next conversation gets these messages.
        await self.add_messages()

    async def _steer(self, call: CallPlan) -> str | None:
        """Call the function in `Tools(before_round=…)`, and return its text."""
        fix = f"have {call.name} return None or a text; to end the conversation, raise a BaeError"
        code, marker, run = "bae-tools-before-round", Dep(call.fn), self._within
        hidden = (await self._inputs.fill([(BEFORE_ROUND, Input(call, marker))]))[BEFORE_ROUND]
        arguments = {**hidden, call.free[0][0]: self.progress}
        try:
            text = await invoke(call, marker, arguments, flow_of(run), run)
        except (BaeError, Waiting):
            raise
        except (Exception, CancelledError) as error:
            if isinstance(error, CancelledError) and cancellations():
                raise
            message = f"before_round={call.name} raised {describe(error)}"
            raise self.error(message, fix, code=code, cause=error) from error
        if text is not None and not isinstance(text, str):
            message = f"before_round={call.name} returned a {type(text).__name__}"
            raise self.error(message, fix, code=code)
        return None if text is None else readable(text, 0)

    async def accept(self, answered: Round, node: Node) -> bool:
        """Return whether the function in `Tools(accept=…)` accepts a filled node. The LLM reads the
        text of a refusal."""
        accept = self.field.accept
        if accept is None or self._accepted:
            self._finish()
            return True
        marker = Dep(accept.fn, timeout=self.marker.accept_timeout)
        hidden = (await self._inputs.fill([(ACCEPT, Input(accept, marker))]))[ACCEPT]
        arguments = {**hidden, accept.free[0][0]: node}
        try:
            run = self._within
            once = partial(call_for_model, accept, False, arguments, run)
            is_refused, value = await call_within_bounds(accept, marker, once, run)
        except (BaeError, Waiting):
            raise
        except (Exception, CancelledError) as error:
            if isinstance(error, CancelledError) and cancellations():
                raise
            raise self.error(
                f"accept={accept.name} raised {type(error).__name__}",
                f"fix {accept.name}; to refuse an answer, raise ToolError",
                code="bae-tools-accept",
                cause=error,
            ) from error
        if not is_refused:
            await self._store(RoundReplied, answered.number, "accepted")
            self._accepted = True
            self._finish()
            return True
        text = text_of(value) or "it was refused"
        await self._store(RoundReplied, answered.number, "refused", text)
        answered.replies.append(text)
        answered.is_refused = True
        return False
