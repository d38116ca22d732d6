"""`ScriptedLM`, for tests of graphs without a model: it gives scripted answers, validates them like
the answers of any LM, and records the questions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from types import FunctionType, MethodType, NoneType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, cast
from warnings import warn

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from bae.answer_form import AnswerForm
from bae.draft import from_text
from bae.exceptions import FillError, ScriptError, faults
from bae.given_files import read_file
from bae.language_model import RoutingLM, ask_lm, scene_around
from bae.node import Node
from bae.plan import plan_of
from bae.prompts.messages import CallPart
from bae.secrets import mask_values
from bae.toolbox import toolbox_of
from bae.usage import Asking, Attempt, Restart, Thought, Usage, report_usage, tell

if TYPE_CHECKING:
    from bae.language_model import LM, Scene
    from bae.prompts.messages import Prompt
    from bae.toolbox import Round, Toolbox
    from bae.tools import ToolCall

N = TypeVar("N", bound=Node)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, init=False)
class Call:
    """A tool call in a script: `Call("search", query="kettle")`. A list of calls is one round."""

    name: str
    arguments: dict[str, Any]

    def __init__(self, name: str, /, **arguments: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "arguments", arguments)


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer in a script that arrives in pieces, to test code that shows streamed text.
    `Streamed({"text": "…"}, pause=0.02)` waits 0.02 seconds between two pieces of at most `size`
    characters. `thinking` arrives before the answer. With `restarts=2`, half of the answer arrives
    twice and becomes void, as if the request had failed."""

    answer: Node | Mapping[str, Any] | str
    size: int = 4
    pause: float = 0.0
    thinking: str = ""
    restarts: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or self.restarts < 0 or not 0 <= self.pause < inf:
            raise ValueError(f"{self!r}: give a size of 1 or more, and no number below 0")


Scripted = (
    type[Node]
    | Node
    | Mapping[str, Any]
    | str
    | Streamed
    | BaseException
    | Call
    | Sequence[Call]
    | None
)
"""One answer: a class or its name to choose it; a node or its values to fill it, or a text if its
field has `Text()`; a `Streamed` fill; calls of tools; None to end the run; an exception to
raise."""

Answerer = Callable[["Asked"], Scripted]
"""A function that takes a question and returns the answer, for any number of questions."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One question to a `ScriptedLM`, with every part of it. `prompt` is the prompt that a model
    would get."""

    kind: Literal["choose_type", "fill"]
    types: tuple[type, ...] = ()
    context: Mapping[str, Any] | None = None
    target: type[Node] | None = None
    resolved: Mapping[str, Any] | None = None
    instruction: str = ""
    previous: Node | None = None
    """The previous node."""
    errors: tuple[str, ...] = ()
    """The errors of the last answer, if the question is asked again."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls of the conversation so far, with their results."""
    make_prompt: Callable[[], Prompt] | None = field(default=None, repr=False, compare=False)

    @property
    def source(self) -> Node | None:
        """The previous node, under the name that it has in `LM.fill`."""
        return self.previous

    @property
    def prompt(self) -> Prompt:
        """The prompt of this question, before any correction."""
        if self.make_prompt is None:
            raise ValueError("only a question that a ScriptedLM was asked has a prompt")
        return self.make_prompt()


class ScriptedLM(RoutingLM):
    """An LM that answers from a script.

    Pass answers in order, `ScriptedLM([Outfit, {"top": "shirt"}])`: each choice and each fill takes
    one answer. Or pass answers by type, `ScriptedLM({Outfit: [{"top": "shirt"}]},
    choices=[Outfit])`. Class names work too. By type, choices take the next of `choices`; without
    `choices`, the LM chooses the only offered type that has answers left. By type, an answer may
    also be a function of the question, `{Summary: lambda asked: {"text": …}}`. It is called for
    each question, which suits maps, whose questions come in any order.

    After an invalid answer the next answer in the script is used, up to `attempts` in total; then
    `FillError` is raised. A question without a scripted answer raises `ScriptError`. Call
    `assert_complete()` at the end to fail if answers are left. `asked` lists all questions, and
    `prompts` the prompts that a model would have got.
    """

    def __init__(
        self,
        script: Sequence[Scripted] | Mapping[Any, Scripted | Answerer | Sequence[Scripted]] = (),
        *,
        choices: Sequence[type[Node] | str | None] = (),
        attempts: int = 3,
    ) -> None:
        if isinstance(script, str):
            raise TypeError(f"ScriptedLM({script!r}): give it a list of answers, or them by type")
        if attempts < 1:
            raise ValueError(f"ScriptedLM(attempts={attempts!r}): give 1 or more")
        self.asked: list[Asked] = []
        self._attempts = attempts
        self._by_name: dict[str, Answerer | list[Scripted]] = {}
        self._warned: set[str] = set()
        self._choices: list[Scripted] = list(choices)
        self._in_order = not isinstance(script, Mapping)
        if not isinstance(script, Mapping):
            self._choices[:0] = script  # fills are taken from this list too
            return
        for target, answers in script.items():
            if isinstance(answers, FunctionType | MethodType):
                self._by_name[_name(target)] = answers
            else:
                many = isinstance(answers, Sequence) and not isinstance(answers, str)
                listed = cast(Sequence[Scripted], answers if many else [answers])
                self._by_name[_name(target)] = list(listed)

    @classmethod
    def from_file(cls, path: str | Path) -> ScriptedLM:
        """Read a script from a JSON file.

        A list has answers in order: a name chooses, an object fills, or a text if the field has
        `Text()`, and null ends the run. An object has answers by type,
        `{"fills": {"Outfit": [{…}]}, "choices": ["Outfit"]}`. A tool call is
        `{"call": "search", "arguments": {"query": "kettle"}}`, and a list of calls is a round."""
        try:
            script = _FILE.validate_json(read_file(path))
            if isinstance(script, list):
                return cls(_with_rounds(script))
            fills = {name: _with_rounds(answers) for name, answers in script.fills.items()}
            return cls(fills, choices=script.choices)
        except (OSError, ValidationError) as error:
            raise ScriptError(
                f"the script {path} cannot be read",
                code="bae-script-invalid",
                cause=error,
                fix="name a file of JSON by its path, from the directory that the program runs in, "
                'with ["Outfit", {"top": "shirt"}] or {"fills": {"Outfit": [{…}]}}; a tool '
                'call is {"call": "search", "arguments": {…}}, and a list of these is a round',
            ) from error

    async def choose_type(
        self,
        types: Sequence[type[Node] | type[None]],
        context: Mapping[str, Any],
        *,
        scene: Scene | None = None,
    ) -> type[Node] | type[None]:
        """The scripted choice, which must be among `types`."""
        here, known = scene or scene_around.get(), dict(context)
        asked = partial(_choice_question, types, (), None, known, None, here)
        return self._choose(types, context, asked)

    async def route(
        self,
        node: Node,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
        resolved: Mapping[type[Node], Mapping[str, Any]] | None = None,
        *,
        scene: Scene | None = None,
    ) -> tuple[type[Node] | type[None], None]:
        """The scripted choice. The chosen type is filled by a separate answer. The recorded prompt
        is a model's prompt, which may ask for both at once."""
        here = scene or scene_around.get()
        if type(self).choose_type is not ScriptedLM.choose_type:  # a subclass overrides it
            shown = mask_values(node, here.hidden)
            return await ask_lm(self, "choose_type", here, types, shown), None
        asked = partial(_choice_question, types, fillable, node, None, resolved, here)
        return self._choose(types, dict(node), asked), None

    def pinned(self, lm: LM) -> LM:
        """The LM itself."""
        return lm

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Does nothing: a script has no budget."""

    def _choose(
        self,
        types: Sequence[type[Node] | type[None]],
        context: Mapping[str, Any],
        prompt: Callable[[], Prompt],
    ) -> type[Node] | type[None]:
        self.asked.append(
            Asked("choose_type", types=tuple(types), context=dict(context), make_prompt=prompt)
        )
        if len(types) == 1:
            return types[0]
        answer = _report_call(lambda: self._next_choice(types))
        name = _name(answer)
        for offered in types:
            if _name(offered) == name:
                tell(Attempt(1, name, "valid", (), _ONE_ANSWER))
                return offered
        among = ", ".join(map(_name, types))
        errors = (f"choice: not one of {among}",)
        tell(Attempt(1, name, "invalid", errors, _ONE_ANSWER))
        raise ScriptError(
            f"a choice among {among} was asked for, but the next answer is {answer!r}",
            code="bae-script-mismatch",
            fix="put a class, or its name, at the place where a choice is asked for",
        )

    async def fill(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        instruction: str,
        source: Node | None = None,
        *,
        scene: Scene | None = None,
    ) -> N:
        """A `target` with the scripted values for its plain fields."""
        here = scene or scene_around.get()
        problem: ValidationError | None = None
        tried: list[Attempt] = []
        asked = Asked(
            "fill",
            target=target,
            resolved=dict(resolved),
            instruction=instruction,
            previous=source,
            make_prompt=partial(_fill_question, target, dict(resolved), instruction, source, here),
        )
        if plan_of(target).tools is not None:
            box = toolbox_of(target, resolved, here)
            if box is not None:
                return await self._fill_with_tools(target, resolved, asked, box)
        for number in range(1, self._attempts + 1):
            self.asked.append(replace(asked, errors=tried[-1].errors if tried else ()))
            if not plan_of(target).plain:
                return target(**resolved)
            tell(Asking(partial(AnswerForm.of, target)))
            values, streamed = _report_call(lambda: self._next_fill(target, tried))
            assert not isinstance(values, tuple)  # a tuple has tool calls
            thinking = "" if streamed is None else streamed.thinking
            if streamed is not None:
                await _tell_pieces(_text(values), streamed)
            attempt = Attempt(number, _text(values), "valid", (), _ONE_ANSWER, thinking=thinking)
            try:
                given = from_text(target, values) if isinstance(values, str) else values
                node = target(**{**given, **resolved})
                tell(attempt)
                return node
            except ValidationError as error:
                problem = error
                errors = tuple(faults(error))
                tried.append(replace(attempt, verdict="invalid", errors=errors))
                tell(tried[-1])
        raise FillError(
            f"{target.__name__}: {self._attempts} answers in a row were not valid: "
            f"{'; '.join(tried[-1].errors)}",
            node_type=target,
            validation_errors=problem.errors(include_url=False) if problem else (),
            attempts=self._attempts,
            tried=tried,
            cause=problem,
            fix=f"script values that {target.__name__} takes",
        )

    async def _fill_with_tools(
        self, target: type[N], resolved: Mapping[str, Any], asked: Asked, box: Toolbox
    ) -> N:
        """Run the scripted tool calls, then fill a `target`."""
        await box.open()
        while True:
            made = box.open_round
            must_answer = box.must_answer(is_native=True, before=made)
            streamed: Streamed | None = None
            if made is None:
                box.check_limit()
                await box.prepare_round()
                prompt = partial(_tool_question, asked, box, must_answer, box.cut, len(box.rounds))
                so_far = replace(asked, errors=_errors_of(box), calls=(*box.calls,))
                self.asked.append(replace(so_far, make_prompt=prompt))
                tell(Asking(partial(AnswerForm.of, target)))
                answer, streamed = _report_call(lambda: self._next_fill(target, []))
                if isinstance(answer, tuple):
                    calls = [CallPart("", call.name, call.arguments) for call in answer]
                    made = box.take("", calls, None, _ONE_ANSWER)
                else:
                    if streamed is not None:
                        await _tell_pieces(_text(answer), streamed)
                    made = box.take(_text(answer), (), None, _ONE_ANSWER)
            if made.calls:
                await box.run_calls(made, not must_answer)
            elif (node := await self._judge(target, resolved, made, box, streamed)) is not None:
                return node
            if box.wrong_rounds >= self._attempts:
                raise box.wrong_too_often(self._attempts - 1)

    async def _judge(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        made: Round,
        box: Toolbox,
        streamed: Streamed | None,
    ) -> N | None:
        """The node of an answer, or None if it is invalid or not accepted."""
        known = {**resolved, box.field.name: box.calls}
        thinking = "" if streamed is None else streamed.thinking
        try:
            takes_text = any(field.fills == "text" for field in plan_of(target).plain)
            given = from_text(target, made.text) if takes_text else from_json(made.text or "{}")
            node = target(**{**given, **known})
        except ValidationError as error:
            errors = tuple(faults(error))
            tell(Attempt(made.number, made.text, "invalid", errors, thinking=thinking))
            box.reply(made, "; ".join(errors))
            return None
        tell(Attempt(made.number, made.text, "valid", thinking=thinking))
        return node if await box.accept(made, node) else None

    async def make(self, node: Node, target: type[N], *, scene: Scene | None = None) -> N:
        """A `target` filled from the script, with `node` as the previous node."""
        here, instruction = scene or scene_around.get(), plan_of(target).instruction
        return await ask_lm(self, "fill", here, target, {}, instruction, source=node)

    async def decide(self, node: Node, *, scene: Scene | None = None) -> Node | None:
        """The scripted successor of `node`, filled. None ends the run."""
        plan, here = plan_of(type(node), strict=True), scene or scene_around.get()
        chosen, _ = await ask_lm(self, "route", here, node, plan.offered, plan.successors)
        return None if chosen is NoneType else await ask_lm(self, "make", here, node, chosen)

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts of the questions so far, one for each round with tools. Questions that need
        no call are left out: a choice of a single type, and a node without fields to fill."""
        asked = [each for each in self.asked if not each.errors or _has_tools(each.target)]
        prompts = [each.prompt for each in asked]
        return [p for p in prompts if len(p.question.types) > 1 or p.question.fields or p.tools]

    def has_answers(self, target: type[Node] | str) -> bool:
        """Whether the script has answers left for a class. False for a script in order, which names
        no classes."""
        return bool(self._by_name.get(_name(target)))

    def assert_complete(self) -> None:
        """Raise AssertionError if part of the script was not used."""
        left = self._choices
        parts = [f"{len(left)} in order: {left!r}"] if left else []
        for name, answers in self._by_name.items():
            if answers and not callable(answers):
                parts.append(f"{len(answers)} for {name}: {answers!r}")
        if parts:
            raise AssertionError(f"the script was not used up; left are {'; '.join(parts)}")

    def _next_choice(self, types: Sequence[type]) -> Scripted:
        if self._choices:
            return self._choices.pop(0)
        offered = ", ".join(map(_name, types))
        if self._in_order:
            raise self._exhausted_error(f"a choice among {offered}")
        able = [type_ for type_ in types if self._by_name.get(self._key_of(type_))]
        if len(able) == 1:
            return able[0]
        raise ScriptError(
            f"asked to choose among {offered}, and the script has answers left for "
            f"{', '.join(map(_name, able)) or 'none of them'}",
            fix="say which in choices=[…]",
        )

    def _key_of(self, target: type) -> str:
        """The name under which the script has answers: the name of the class, or its former name
        in earlier versions of bae."""
        name, former = _name(target), getattr(target, "former_name", None)
        if name in self._by_name or former not in self._by_name:
            return name
        if former not in self._warned:
            self._warned.add(former)
            message = f"the node {former} is called {name} now: rename it in the script"
            warn(message, FutureWarning, stacklevel=2)
        return former

    def _next_fill(
        self, target: type[Node], tried: Sequence[Attempt]
    ) -> tuple[Mapping[str, Any] | str | tuple[Call, ...], Streamed | None]:
        """The next answer, as values, text or tool calls, and how it is streamed."""
        answers = self._choices if self._in_order else self._by_name.get(self._key_of(target))
        refused = "".join(f"; answer {t.number} was refused: {', '.join(t.errors)}" for t in tried)
        wanted = f"the fields of {target.__name__}{' again' if tried else ''}"
        if not answers:
            raise self._exhausted_error(wanted, refused)
        answer = answers(self.asked[-1]) if callable(answers) else answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        streamed = answer if isinstance(answer, Streamed) else None
        if isinstance(answer, Streamed):
            answer = answer.answer
        plan = plan_of(target)
        if plan.tools is not None:
            listed: Any = [answer] if isinstance(answer, Call) else answer
            if isinstance(listed, list | tuple) and all(
                isinstance(each, Call) for each in cast("Sequence[Any]", listed)
            ):
                return tuple(cast("Sequence[Call]", listed)), None
        if isinstance(answer, target):
            asked = (field.name for field in plan.plain if field.fills != "calls")
            return {name: getattr(answer, name) for name in asked}, streamed
        takes_text = any(field.fills == "text" for field in plan.plain)
        if isinstance(answer, Mapping) or (isinstance(answer, str) and takes_text):
            return answer, streamed
        kind = "text" if takes_text else "dict"
        raise ScriptError(
            f"asked for {wanted}, but the next answer is {answer!r}{refused}",
            code="bae-script-mismatch",
            fix=_FIX if tried else f"put a {kind} or a {target.__name__} there",
        )

    def _exhausted_error(self, wanted: str, refused: str = "") -> ScriptError:
        message = f"asked for {wanted}, but the script has no answer left"
        if refused:
            return ScriptError(f"{message}{refused}", fix=_FIX)
        others = [name for name, left in self._by_name.items() if left and not callable(left)]
        has = f"; it has answers for {', '.join(others)}" if others else ""
        return ScriptError(
            f"{message} (question {len(self.asked)}{has})",
            fix="add an answer, or find out why there is one more question",
        )


def assert_prompt(prompts: Iterable[Prompt], node: type[Node], *texts: str) -> None:
    """Raise AssertionError unless all of `texts` are in every prompt that fills a `node` or offers
    it as a choice.

    Pass the prompts that a graph can send, `graph.prompts(Letter(text="It broke."))`, or the
    prompts of a run, `ScriptedLM.prompts`. The texts are searched in the system text, the messages
    and the schema. A text with quotes or line breaks is found inside JSON too.
    """
    asked = [prompt for prompt in prompts if prompt.question.asks_for(node)]
    if not asked:
        raise AssertionError(f"no prompt asks for {node.__name__}, or offers it")
    for prompt in asked:
        sent = str(prompt)
        for text in texts:
            if text not in sent and json.dumps(text, ensure_ascii=False)[1:-1] not in sent:
                raise AssertionError(f"{text!r} is not in this prompt:\n\n{sent}")


class _CallInFile(BaseModel, extra="forbid"):
    call: str
    arguments: dict[str, Any] = {}


class _ScriptFile(BaseModel, extra="forbid"):
    fills: dict[str, Any] = {}
    choices: list[str | None] = []


_FILE: Final = TypeAdapter[list[Any] | _ScriptFile](list[Any] | _ScriptFile)
_CALL: Final = {"call", "arguments"}
_ROUND: Final = TypeAdapter(list[_CallInFile])
_ONE_ANSWER: Final = Usage(calls=1, attempts=1)
_FIX: Final = "fix the answer; or put the next one after it, where it is meant to be wrong"


def _with_rounds(answers: Any) -> Any:
    """Replace the tool calls in the answers of a file by lists of `Call`."""
    if not isinstance(answers, list):
        return answers
    converted: list[Any] = []
    for each in cast("list[Any]", answers):
        is_call = isinstance(each, dict) and {*cast("dict[str, Any]", each)} == _CALL
        if is_call or isinstance(each, list):
            calls = _ROUND.validate_python([each] if is_call else each)
            converted.append([Call(call.call, **call.arguments) for call in calls])
        else:
            converted.append(each)
    return converted


def _text(values: Mapping[str, Any] | str) -> str:
    try:
        return values if isinstance(values, str) else to_json(values, fallback=repr).decode()
    except ValueError:  # half a character, which a node may contain
        return "(it cannot be written as JSON)"


async def _tell_pieces(text: str, streamed: Streamed) -> None:
    """Send an answer to observers in pieces."""
    size, restarts = streamed.size, streamed.restarts
    texts = [text[: len(text) // 2]] * restarts + [text]
    for number, each in enumerate(texts):
        for at in range(0, len(streamed.thinking), size):
            tell(Thought(streamed.thinking[at : at + size]))
            await asyncio.sleep(streamed.pause)
        for at in range(0, len(each), size):
            tell(each[at : at + size])
            await asyncio.sleep(streamed.pause)
        if number < restarts:
            tell(Restart(ConnectionError("the script has the request fail here"), 0.0))


def _has_tools(target: type[Node] | None) -> bool:
    return target is not None and plan_of(target).tools is not None


def _errors_of(box: Toolbox) -> tuple[str, ...]:
    """The errors of the last round, or why its answer was refused."""
    last = box.rounds[-1] if box.rounds else None
    return tuple(last.replies) if last and (last.is_wrong or last.is_refused) else ()


def _report_call(ask: Callable[[], T]) -> T:
    """Call `ask` and report one call. An exception is a call without an answer."""
    try:
        answer = ask()
        if isinstance(answer, BaseException):
            raise answer
    except BaseException:
        report_usage(Usage(calls=1))
        raise
    report_usage(_ONE_ANSWER)
    return answer


def _fill_question(*asked: Any) -> Prompt:
    from bae.prompts.questions import fill_question  # only needed if a test looks at a prompt

    return fill_question(*asked)


def _tool_question(asked: Asked, box: Toolbox, must_answer: bool, cut: int, rounds: int) -> Prompt:
    from bae.prompts.tools import ToolPrompts

    taken = RoutingLM.takes_files
    prompts = ToolPrompts(asked.prompt, box.specs, is_native=True, takes_files=taken)
    return prompts.next(box, must_answer, cut, box.rounds[:rounds])


def _choice_question(*asked: Any) -> Prompt:
    from bae.prompts.questions import choice_question

    return choice_question(*asked)


named_script = ScriptedLM.from_file
"""The LM named `scripted:FILE.json`."""


def _name(target: object) -> str:
    if target is None or target is NoneType:
        return "None"
    return target.__name__ if isinstance(target, type) else str(target)
