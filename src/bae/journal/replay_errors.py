"""The errors of a replay: how a run differs from its recording."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import unified_diff
from types import NoneType
from typing import TYPE_CHECKING, Any

from bae import exceptions
from bae.exceptions import BaeError, CallTimeout, ReplayError
from bae.records import RecordedError

if TYPE_CHECKING:
    from bae.calls import CallPlan
    from bae.node import Node
    from bae.place import Place
    from bae.plan import NodePlan
    from bae.records import LMAnswered
    from bae.rooms import QuestionText
    from bae.run import Run


def other_node(
    run_id: str, run: Run, step: int, was: str, now: str, recorded: Node, node: Node | type[Node]
) -> ReplayError:
    """A node that differs from the recorded one."""
    before = type(run.trace[-2]).__name__ if len(run.trace) > 1 else ""
    kind = node if isinstance(node, type) else type(node)
    place = _at(run, step)
    said = f"{place} was a {type(recorded).__name__} and is a {kind.__name__}"
    if type(recorded) is kind:
        said = f"{place}: {kind.__name__} is not as it was"
    said += f", after {before}" if before else ""
    return _differs(run_id, said, _pretty(was), _pretty(now))


def other_prompt(run_id: str, run: Run, by: str, was: str, now: str) -> ReplayError:
    """A question to the LM that differs from the recorded one."""
    said = f"{_at(run, run.step)}: {by}, the question to the LM differs from the recorded one"
    return _differs(run_id, said, was, now)


def not_offered(
    run_id: str, run: Run, plan: NodePlan, chosen: type[Node] | type[None]
) -> ReplayError:
    """A choice that can no longer be made."""
    offered = ", ".join(_name(each) for each in plan.offered)
    said = f"the LM chose {_name(chosen)} after {plan.name}, which now offers {offered}"
    return _differs(run_id, f"{_at(run, run.step)}: {said}", _name(chosen), offered)


def ended_early(
    run_id: str, run: Run, step: int, node: Node, recorded: bool = False
) -> ReplayError:
    """A run that is now shorter, or longer, than it was."""
    name = type(node).__name__
    if recorded:
        said, was, now = f"the run continued to {name}, and now ends there", name, "(end)"
    else:
        said, was, now = f"the run ended there, and now continues to {name}", "(end)", name
    return _differs(run_id, f"{_at(run, step)}: {said}", was, now)


def beyond(run_id: str, what: str, how: str) -> ReplayError:
    """Something the recording does not reach."""
    said = f"the run is recorded as {how}" if how else "the run was interrupted before it"
    return ReplayError(
        f"the recording ends before {what}: {said}",
        run_id=run_id,
        code="bae-replay-ended",
        fix="resume the run with graph.resume, and replay it then",
    )


def raised_again(error: BaseException) -> BaseException:
    """What a dependency failed with: of bae's own errors the same one, of others one of the same
    name."""
    if not isinstance(error, RecordedError):
        return error
    if error.type_name == CallTimeout.__name__:
        return CallTimeout(error.message)
    named = type(error.type_name, (Exception,), {"__module__": "bae.replay"})
    return as_recorded(error) or named(error.message)


def as_recorded(error: BaseException | None) -> BaeError | None:
    """What a run failed with, to be raised again where an LM was asked; None where it was nothing
    of bae's own."""
    if not isinstance(error, RecordedError):
        return None
    kind = getattr(exceptions, error.type_name, None)
    if not isinstance(kind, type) or not issubclass(kind, BaeError):
        return None
    raised = kind(error.message, fix="it is as recorded: nothing was asked")
    raised.code = error.code or raised.code
    return raised


def unkept(run_id: str, place: Place, call: CallPlan | None, how: str) -> ReplayError:
    """A value that the recording does not have."""
    where = f"{place.node}.{place.field}{place.parameter}"
    by = call.name if call is not None else "the gate"
    return ReplayError(
        f"{where}: the recording has no value of {by} here: no journal holds it, or the run did "
        f"not ask for it{f' ({how})' if how else ''}",
        run_id=run_id,
        code="bae-replay-live",
        fix=f"give a stand-in: dep_cache={{{by}: …}}; or record the run again",
    )


def unasked(
    run_id: str,
    by: str,
    method: str,
    target: str,
    question: QuestionText,
    left: Sequence[LMAnswered],
    recorded: str | None,
) -> ReplayError:
    """A question of a body's own that was not asked, or was another."""
    wanted = f"{method}({target})" if target else method
    same = next((each for each in left if (each.method, each.target) == (method, target)), None)
    if same is not None:
        said = f"{by}: {wanted} asks the LM something other than was recorded"
        was = recorded or "(the text was not recorded)"
        return _differs(run_id, said, was, question.text)
    answered = ", ".join(f"{e.method}({e.target})" if e.target else e.method for e in left)
    said = f"{by}: asks the LM for {wanted}; recorded is {answered or 'nothing more'}"
    return _differs(run_id, said, answered or "(nothing)", wanted)


def _differs(run_id: str, said: str, was: str, now: str) -> ReplayError:
    texts = was.splitlines(), now.splitlines()
    return ReplayError(
        said,
        diff="\n".join(unified_diff(*texts, "recorded", "replayed", lineterm="", n=2)),
        run_id=run_id,
        fix="fix the code; or, where the change is meant, record the run again",
    )


def _at(run: Run, step: int) -> str:
    return f"{run.path}, step {step}" if run.path else f"step {step}"


def _name(offered: type[Any]) -> str:
    return "None" if offered is NoneType else offered.__name__


def _pretty(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except ValueError:
        return text
