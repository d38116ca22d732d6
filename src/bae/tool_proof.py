"""The validation of tools before a run. Providers must accept the name, JSON must be able to
express parameters and results, and approval functions must fit the tool."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, Final, cast

from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError

from bae.assignable import type_name
from bae.exceptions import Problem, a_warning, an_error
from bae.file_proof import file_in
from bae.hints import signature_of
from bae.prompts.schemas import argument_schema
from bae.tool_plan import AskPlan, ToolPlan
from bae.tools import LONGEST_NAME, TOOL_NAME

_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def tool_problems(plan: ToolPlan | AskPlan) -> Iterator[Problem]:
    """Return the problems that a tool has whichever node and model use it."""
    return _ask_problems(plan) if isinstance(plan, AskPlan) else _function_problems(plan)


def _function_problems(plan: ToolPlan) -> Iterator[Problem]:
    yield from plan.call.problems
    if not TOOL_NAME.fullmatch(plan.name):
        yield an_error(
            "bae-tool-name",
            f"the tool {plan.name!r} has a name that providers refuse",
            f"give it one with at most {LONGEST_NAME} letters, digits, _ and -: "
            f'Tool({plan.name}, name="…")',
        )
    if plan.tool.schema is not None or plan.call.problems:
        return
    rule = plan.approval
    if rule is not None and rule.takes is not None:
        unknown = sorted(rule.takes - plan.parameters.keys())
        if unknown:
            yield an_error(
                "bae-tool-approve",
                f"the function in Tool({plan.name}, approve=…) takes {', '.join(unknown)}, "
                f"and the model gives {plan.name} {', '.join(plan.parameters) or 'nothing'}",
                "name its parameters as those of the tool, or have it take **arguments",
            )
    if plan.call.graph is None:
        if plan.call.kind not in ("async", "sync"):
            yield an_error(
                "bae-tool-kind",
                f"the tool {plan.name} is a generator or a context manager, which a model "
                "cannot call",
                f"return the value from {plan.name}, and open what it needs in a Dep parameter",
            )
            return
        unannotated = _list_unannotated(plan)
        if unannotated and unannotated[0] == "self":
            yield an_error(
                "bae-tool-unannotated",
                f"{plan.name} is a method of a class, and has no object to be called on",
                f"give the method of an object: Tools(client.{plan.name})",
            )
            return
        if unannotated:
            yield an_error(
                "bae-tool-unannotated",
                f"{plan.name}({', '.join(unannotated)}) has no type, so the model is not told "
                "what to give",
                f"annotate it: {unannotated[0]}: str",
            )
            return
        if not plan.parameters and not plan.tool.description and (why := _explain_hidden(plan)):
            yield a_warning(
                "bae-tool-hidden",
                f"the model gives {plan.name} nothing: {why}",
                "leave a parameter to the model; if the tool needs none, say so: "
                f'Tool({plan.name}, description="…")',
            )
    for name, (hint, _) in plan.parameters.items():
        file_class = _find_file(hint)
        if file_class:
            yield an_error(
                "bae-file-filled",
                f"{plan.name}({name}) is {file_class}, and no model gives a file",
                f"have bae fill {name}, as Annotated[{file_class}, Dep(…)] or Recall(); or take a "
                "name or a number, and find the file by it",
            )
            return
    try:
        spec = plan.spec
    except Exception as error:
        parameter = _find_without_schema(plan) or "one of its parameters"
        yield an_error(
            "bae-tool-no-schema",
            f"{plan.name}: the model is to give {parameter}, which has no JSON schema"
            + ("" if isinstance(error, PydanticUserError) else f" ({error})"),
            "use what JSON can express (str, int, list, a BaseModel, …), or have bae fill the "
            "parameter: Annotated[…, Dep(…)]",
        )
        return
    if not spec.description:
        yield a_warning(
            "bae-tool-undescribed",
            f"{plan.name} has no docstring, so the model is told the name alone",
            "say what it does and when to call it, in a docstring or with "
            f'Tool({plan.name}, description="…")',
        )
    unshown = _find_unshown_result(plan)
    if unshown:
        yield a_warning(
            "bae-tool-result",
            f"{plan.name} returns {unshown}, which JSON cannot express: the model reads results"
            " as JSON",
            "return text, numbers, lists, dataclasses or Pydantic models",
        )
    if rule is not None and plan.secret_parameters:
        secret = ", ".join(sorted(plan.secret_parameters))
        yield a_warning(
            "bae-tool-secret",
            f"a person approves {plan.name}, and no journal stores {secret}: a run that is "
            "parked at the question has to ask the model for the call again",
            "have bae fill the secret: Annotated[…, Dep(…)]; or pass answer=… so that people "
            "answer while the run is in progress",
        )


def _explain_hidden(plan: ToolPlan) -> str:
    """Explain why a model sees no parameter of a function; empty if the function has none."""
    call, parameters = plan.call, signature_of(cast(Any, plan.tool.fn)).parameters
    filled = [*(n for n, _ in call.inputs), *(n for n, _ in call.recalls), *call.lm_parameters]
    if filled:
        return f"bae fills all of its parameters, {', '.join(filled)}"
    variadic = [str(p) for p in parameters.values() if p.kind in _VARIADIC]
    return f"{', '.join(variadic)} is not shown to it" if variadic else ""


def _find_unshown_result(plan: ToolPlan) -> str:
    """Return the class in a function's return annotation, if JSON cannot express objects of the
    class; else an empty text."""
    returned = plan.call.declared
    # For an abstract class, the result may be of a subclass that JSON can express.
    if not isinstance(returned, type) or returned is object or inspect.isabstract(returned):
        return ""
    if plan.call.graph is not None or getattr(returned, "_is_protocol", False):
        return ""
    try:
        TypeAdapter(returned)
    except PydanticUserError:
        return type_name(returned)
    return ""


def _list_unannotated(plan: ToolPlan) -> list[str]:
    parameters = signature_of(cast(Any, plan.tool.fn)).parameters
    return [n for n in plan.parameters if parameters[n].annotation is inspect.Parameter.empty]


def _find_file(hint: Any) -> str:
    """Return the class of files in the type of a parameter; empty if the type has no file."""
    if hint in (str, int, float, bool):
        return ""
    try:
        return file_in(TypeAdapter(hint).core_schema)
    except Exception:  # the type has no schema, which `_function_problems` reports later
        return ""


def _find_without_schema(plan: ToolPlan) -> str:
    for name, (hint, _) in plan.parameters.items():
        try:
            argument_schema(TypeAdapter(hint).core_schema)
        except Exception:
            return f"{name}: {type_name(hint)}"
    return ""


def _ask_problems(plan: AskPlan) -> Iterator[Problem]:
    """Yield the problems of an `Ask` whose type a person's answer cannot have."""
    try:
        argument_schema(plan.answers.core_schema)
    except Exception:
        yield an_error(
            "bae-tool-no-schema",
            f"Ask({type_name(plan.ask.type)}) has no JSON schema, so nobody can answer it",
            "use what JSON can express (str, bool, a BaseModel, …)",
        )
        return
    from bae.secrets import secret_in

    if secret_in(plan.answers.core_schema):
        yield an_error(
            "bae-ask-secret",
            f"Ask({type_name(plan.ask.type)}) asks for a secret, which the LM would read",
            "have bae fill a Dep parameter of a tool with the secret, or ask at a Gate",
        )
