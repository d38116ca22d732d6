"""`ScriptedLM`, for tests of graphs without a model. It gives scripted answers, and bae validates
them like any LLM's answers. It also records the questions."""

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
    """A tool call in a script: `Call("search", query="kettle")`. For a round with several calls,
    put a list of `Call` into the script."""

    name: str
    arguments: dict[str, Any]

    def __init__(self, name: str, /, **arguments: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "arguments", arguments)


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer in a script that arrives in pieces, such as `Streamed({"text": "…"}, pause=0.02)`.
    Use it to test code that shows streamed text."""

    answer: Node | Mapping[str, Any] | str
    size: int = 4
    """The maximum number of characters of a piece."""
    pause: float = 0.0
    """The seconds between two pieces."""
    thinking: str = ""
    """The model's thinking. It arrives before the answer."""
    restarts: int = 0
    """The number of simulated failures. At each failure, the first half of the answer arrives and
    then becomes void. The complete answer arrives after the last failure."""

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
"""An answer in a script.

- A choice is a node class or its name. None chooses the end of the run.
- A fill is a node, or a dict with the values of its fields. If a field has `Text()`, a fill may be
  a text. A `Streamed` is a fill that arrives in pieces.
- A `Call` or a list of `Call` is a round of tool calls.
- An exception is raised.
"""

Answerer = Callable[["Asked"], Scripted]
"""A function that takes a question and returns the answer. It is called for every question about
its class."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to a `ScriptedLM`."""

    kind: Literal["choose_type", "fill"]
    types: tuple[type, ...] = ()
    """The offered types of a choice."""
    context: Mapping[str, Any] | None = None
    """The values that a choice depends on: the fields of the current node."""
    target: type[Node] | None = None
    """The class to fill."""
    resolved: Mapping[str, Any] | None = None
    """The values of the fields with sources, for a fill."""
    instruction: str = ""
    """The instruction of the class to fill."""
    previous: Node | None = None
    """The node before the node to fill."""
    errors: tuple[str, ...] = ()
    """The reasons why the previous answer was rejected. Empty at the first attempt."""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls of the conversation so far, with their results."""
    make_prompt: Callable[[], Prompt] | None = field(default=None, repr=False, compare=False)

    @property
    def source(self) -> Node | None:
        """The same node as `previous`. In `LM.fill`, the parameter is called `source`."""
        return self.previous

    @property
    def prompt(self) -> Prompt:
        """The prompt that a model would get. It has no corrections of invalid answers."""
        if self.make_prompt is None:
            raise ValueError("only a question that a ScriptedLM was asked has a prompt")
        return self.make_prompt()


class ScriptedLM(RoutingLM):
    """An LM that answers from a script.

    Pass a list of answers in order, `ScriptedLM([Outfit, {"top": "shirt"}])`. Each choice and each
    fill takes the next answer.

    Or pass answers by class, `ScriptedLM({Outfit: [{"top": "shirt"}]}, choices=[Outfit])`. The
    class may be a name. Each choice takes the next of `choices`. Without `choices`, the LM chooses
    the only offered class that has answers left. For a class, you can also pass a function of the
    question, `{Summary: lambda asked: {"text": …}}`. Use a function for maps, because their
    questions come in any order.

    After an invalid answer, the LM takes the next answer in the script. After `attempts` invalid
    answers, the fill raises `FillError`. If the script has no answer for a question, the LM raises
    `ScriptError`. To fail the test if answers are left, call `assert_complete()` at the end.

    `asked` lists all questions. `prompts` lists the prompts that a model would have got.
    """

    def __init__(
        self,
        script: Sequence[Scripted] | Mapping[Any, Scripted | Answerer | Sequence[Scripted]] = (),
        *,
        choices: Sequence[type[Node] | str | None] = (),
        attempts: int = 3,
    ) -> None:
        if isinstance(script, str):
            raise TypeError(f"ScriptedLM({script!r}): give a list of answers, or a dict by class")
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
                answer_list = cast(Sequence[Scripted], answers if many else [answers])
                self._by_name[_name(target)] = list(answer_list)

    @classmethod
    def from_file(cls, path: str | Path) -> ScriptedLM:
        """Read a script from a JSON file.

        A JSON list has answers in order. A JSON object has answers by class,
        `{"fills": {"Outfit": [{…}]}, "choices": ["Outfit"]}`.

        - A choice is the name of a class. null ends the run.
        - A fill is an object with the values, or a text if the field has `Text()`.
        - A tool call is `{"call": "search", "arguments": {"query": "kettle"}}`. A list of tool
          calls is a round.
        """
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
        """Return the next choice of the script. Raise `ScriptError` if it is not in `types`."""
        here, values = scene or scene_around.get(), dict(context)
        make_prompt = partial(_choice_question, types, (), None, values, None, here)
        return self._choose(types, context, make_prompt)

    async def route(
        self,
        node: Node,
        types: Sequence[type[Node] | type[None]],
        fillable: Sequence[type[Node]] = (),
        resolved: Mapping[type[Node], Mapping[str, Any]] | None = None,
        *,
        scene: Scene | None = None,
    ) -> tuple[type[Node] | type[None], None]:
        """Return the next choice of the script, without a fill. The next answer in the script fills
        the chosen type. The recorded prompt may ask for the choice and the fill at once, as the
        prompt for a model does."""
        here = scene or scene_around.get()
        if type(self).choose_type is not ScriptedLM.choose_type:  # a subclass overrides it
            visible_values = mask_values(node, here.hidden)
            return await ask_lm(self, "choose_type", here, types, visible_values), None
        make_prompt = partial(_choice_question, types, fillable, node, None, resolved, here)
        return self._choose(types, dict(node), make_prompt), None

    def pinned(self, lm: LM) -> LM:
        """Return `lm`: a script has no policies to add to a pinned LM."""
        return lm

    def restore(self, run_id: str, used: Usage, seconds: float) -> None:
        """Do nothing, because a script has no budget."""

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
        """Return a `target` with the next scripted values for its plain fields."""
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
                answer_values = from_text(target, values) if isinstance(values, str) else values
                node = target(**{**answer_values, **resolved})
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
        """Run the scripted tool calls, then return a filled `target`."""
        await box.open()
        while True:
            round_ = box.open_round
            must_answer = box.must_answer(is_native=True, before=round_)
            streamed: Streamed | None = None
            if round_ is None:
                box.check_limit()
                await box.prepare_round()
                prompt = partial(_tool_question, asked, box, must_answer, box.cut, len(box.rounds))
                so_far = replace(asked, errors=_errors_of(box), calls=(*box.calls,))
                self.asked.append(replace(so_far, make_prompt=prompt))
                tell(Asking(partial(AnswerForm.of, target)))
                answer, streamed = _report_call(lambda: self._next_fill(target, []))
                if isinstance(answer, tuple):
                    calls = [CallPart("", call.name, call.arguments) for call in answer]
                    round_ = box.take("", calls, None, _ONE_ANSWER)
                else:
                    if streamed is not None:
                        await _tell_pieces(_text(answer), streamed)
                    round_ = box.take(_text(answer), (), None, _ONE_ANSWER)
            if round_.calls:
                await box.run_calls(round_, not must_answer)
            elif (node := await self._judge(target, resolved, round_, box, streamed)) is not None:
                return node
            if box.wrong_rounds >= self._attempts:
                raise box.wrong_too_often(self._attempts - 1)

    async def _judge(
        self,
        target: type[N],
        resolved: Mapping[str, Any],
        round_: Round,
        box: Toolbox,
        streamed: Streamed | None,
    ) -> N | None:
        """Return the node that an answer fills. If the answer is invalid or `accept` refuses it,
        return None."""
        known_values = {**resolved, box.field.name: box.calls}
        thinking = "" if streamed is None else streamed.thinking
        try:
            takes_text = any(field.fills == "text" for field in plan_of(target).plain)
            answer_values = (
                from_text(target, round_.text) if takes_text else from_json(round_.text or "{}")
            )
            node = target(**{**answer_values, **known_values})
        except ValidationError as error:
            errors = tuple(faults(error))
            tell(Attempt(round_.number, round_.text, "invalid", errors, thinking=thinking))
            box.reply(round_, "; ".join(errors))
            return None
        tell(Attempt(round_.number, round_.text, "valid", thinking=thinking))
        return node if await box.accept(round_, node) else None

    async def make(self, node: Node, target: type[N], *, scene: Scene | None = None) -> N:
        """Return a `target` filled from the script. `node` is the node before it."""
        here, instruction = scene or scene_around.get(), plan_of(target).instruction
        return await ask_lm(self, "fill", here, target, {}, instruction, source=node)

    async def decide(self, node: Node, *, scene: Scene | None = None) -> Node | None:
        """Return the successor of `node`, chosen and filled from the script. Return None if the
        script ends the run."""
        plan, here = plan_of(type(node), strict=True), scene or scene_around.get()
        chosen, _ = await ask_lm(self, "route", here, node, plan.offered, plan.successors)
        return None if chosen is NoneType else await ask_lm(self, "make", here, node, chosen)

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts that a model would have got so far, without corrections of invalid answers. A
        conversation with tools has one prompt for each round. A choice of a single type and a node
        without fields to fill have none, because bae does not call the model."""
        questions = [
            question
            for question in self.asked
            if not question.errors or _has_tools(question.target)
        ]
        prompts = [asked.prompt for asked in questions]
        return [p for p in prompts if len(p.question.types) > 1 or p.question.fields or p.tools]

    def has_answers(self, target: type[Node] | str) -> bool:
        """Return whether the script has answers left for a class. For a script in order, this is
        always False."""
        return bool(self._by_name.get(_name(target)))

    def assert_complete(self) -> None:
        """Raise AssertionError if the script has answers left."""
        unused = self._choices
        parts = [f"{len(unused)} in order: {unused!r}"] if unused else []
        for name, answers in self._by_name.items():
            if answers and not callable(answers):
                parts.append(f"{len(answers)} for {name}: {answers!r}")
        if parts:
            raise AssertionError(f"the script has unused answers: {'; '.join(parts)}")

    def _next_choice(self, types: Sequence[type]) -> Scripted:
        if self._choices:
            return self._choices.pop(0)
        offered = ", ".join(map(_name, types))
        if self._in_order:
            raise self._exhausted_error(f"a choice among {offered}")
        candidates = [type_ for type_ in types if self._by_name.get(self._key_of(type_))]
        if len(candidates) == 1:
            return candidates[0]
        raise ScriptError(
            f"asked to choose among {offered}, and the script has answers left for "
            f"{', '.join(map(_name, candidates)) or 'none of them'}",
            fix="say which in choices=[…]",
        )

    def _key_of(self, target: type) -> str:
        """Return the key of the script for a class: the name of the class, or the class's former
        name in earlier versions of bae."""
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
        """Return the next answer, as values, text or tool calls. If the answer is streamed, return
        its `Streamed` too."""
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
            items: Any = [answer] if isinstance(answer, Call) else answer
            if isinstance(items, list | tuple) and all(
                isinstance(item, Call) for item in cast("Sequence[Any]", items)
            ):
                return tuple(cast("Sequence[Call]", items)), None
        if isinstance(answer, target):
            field_names = (field.name for field in plan.plain if field.fills != "calls")
            return {name: getattr(answer, name) for name in field_names}, streamed
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
        others = [
            name for name, answers in self._by_name.items() if answers and not callable(answers)
        ]
        has = f"; it has answers for {', '.join(others)}" if others else ""
        return ScriptError(
            f"{message} (question {len(self.asked)}{has})",
            fix="add an answer, or find out why there is one more question",
        )


def assert_prompt(prompts: Iterable[Prompt], node: type[Node], *texts: str) -> None:
    """Raise AssertionError unless every prompt about `node` has all of `texts`. A prompt is about
    `node` if it asks the LLM to fill `node`, or offers `node` as a choice.

    Pass the prompts that a graph can send, `graph.prompts(Letter(text="It broke."))`, or the
    prompts of a run, `ScriptedLM.prompts`. The texts may be in the system text, the messages or the
    schema. Quotes and line breaks in a text also match their escaped form in JSON.
    """
    matching = [prompt for prompt in prompts if prompt.question.asks_for(node)]
    if not matching:
        raise AssertionError(f"no prompt asks for {node.__name__}, or offers it")
    for prompt in matching:
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
_FIX: Final = "fix the answer; if it is meant to be wrong, put the next answer after it"


def _with_rounds(answers: Any) -> Any:
    """Convert each tool call and each round of a script file to a list of `Call`."""
    if not isinstance(answers, list):
        return answers
    converted: list[Any] = []
    for answer in cast("list[Any]", answers):
        is_call = isinstance(answer, dict) and {*cast("dict[str, Any]", answer)} == _CALL
        if is_call or isinstance(answer, list):
            calls = _ROUND.validate_python([answer] if is_call else answer)
            converted.append([Call(call.call, **call.arguments) for call in calls])
        else:
            converted.append(answer)
    return converted


def _text(values: Mapping[str, Any] | str) -> str:
    try:
        return values if isinstance(values, str) else to_json(values, fallback=repr).decode()
    except ValueError:  # the values have a lone surrogate, which a node may contain
        return "(it cannot be written as JSON)"


async def _tell_pieces(text: str, streamed: Streamed) -> None:
    """Send the thinking and the answer to observers in pieces, with the simulated failures."""
    size, restarts = streamed.size, streamed.restarts
    texts = [text[: len(text) // 2]] * restarts + [text]
    for number, piece in enumerate(texts):
        for at in range(0, len(streamed.thinking), size):
            tell(Thought(streamed.thinking[at : at + size]))
            await asyncio.sleep(streamed.pause)
        for at in range(0, len(piece), size):
            tell(piece[at : at + size])
            await asyncio.sleep(streamed.pause)
        if number < restarts:
            tell(Restart(ConnectionError("the script has the request fail here"), 0.0))


def _has_tools(target: type[Node] | None) -> bool:
    return target is not None and plan_of(target).tools is not None


def _errors_of(box: Toolbox) -> tuple[str, ...]:
    """Return the errors of the last round, or the reasons why `accept` refused the answer."""
    last = box.rounds[-1] if box.rounds else None
    return tuple(last.replies) if last and (last.is_wrong or last.is_refused) else ()


def _report_call(ask: Callable[[], T]) -> T:
    """Call `ask`, report one LLM call, and return the answer. If `ask` raises an exception, or
    returns one, report a call without an answer and raise the exception."""
    try:
        answer = ask()
        if isinstance(answer, BaseException):
            raise answer
    except BaseException:
        report_usage(Usage(calls=1))
        raise
    report_usage(_ONE_ANSWER)
    return answer


def _fill_question(*parts: Any) -> Prompt:
    from bae.prompts.questions import fill_question  # needed only if a test reads a prompt

    return fill_question(*parts)


def _tool_question(asked: Asked, box: Toolbox, must_answer: bool, cut: int, rounds: int) -> Prompt:
    from bae.prompts.tools import ToolPrompts

    takes_files = RoutingLM.takes_files
    prompts = ToolPrompts(asked.prompt, box.specs, is_native=True, takes_files=takes_files)
    return prompts.next(box, must_answer, cut, box.rounds[:rounds])


def _choice_question(*parts: Any) -> Prompt:
    from bae.prompts.questions import choice_question

    return choice_question(*parts)


named_script = ScriptedLM.from_file
"""The LM named `scripted:FILE.json`."""


def _name(target: object) -> str:
    if target is None or target is NoneType:
        return "None"
    return target.__name__ if isinstance(target, type) else str(target)
