"""A graph whose node is filled after tool calls, three tools of a round at the same time: a tool
that must not be called twice, a tool in a thread that may be repeated, and a graph with a step, a
dependency and a tool of its own. Every call is a named effect."""

from __future__ import annotations

import asyncio
from time import sleep
from typing import Annotated, Any

from bae import Dep, Graph, Node, Recall, Tool, ToolCall, ToolError, Tools
from bae.lm import Answer, Backend, Prompt, Usage
from bae.lm.backend import CallPart
from crash.effects import effect

ROUNDS = 4


async def get_till() -> str:
    with effect("get_till"):
        await asyncio.sleep(0.0005)
        return "till"


async def pay(bill: str, till: Annotated[str, Dep(get_till)]) -> str:
    """Pay a bill. It is never paid twice."""
    with effect(f"pay {bill}"):
        await asyncio.sleep(0.001 * (1 + len(bill) % 3))
        return f"{bill} from the {till}"


def read_meter(meter: str) -> int:
    """Read a meter, as often as needed."""
    with effect(f"read_meter {meter}"):
        sleep(0.002)
        return len(meter)


async def look_up(part: str) -> str:
    with effect(f"look_up {part}"):
        await asyncio.sleep(0.001)
        return part.upper()


class Part(Node):
    part: str
    found: Annotated[str, Dep(look_up, part="part")]

    async def __call__(self) -> Fitted: ...


class Fitted(Node):
    part: Annotated[str, Recall(Part)]
    calls: Annotated[list[ToolCall], Tools(Tool(pay, name="pay_part"))]
    note: str

    async def __call__(self) -> None:
        with effect(f"body {self.part}"):
            await asyncio.sleep(0.0005)


async def refuse_first(done: Done) -> None:
    with effect(f"accept {done.text}"):
        await asyncio.sleep(0.0005)
    if done.text == "first":
        raise ToolError("write it again")


class Order(Node):
    text: str

    async def __call__(self) -> Done: ...


class Done(Node):
    order: Annotated[str, Recall(Order)]
    calls: Annotated[
        list[ToolCall],
        Tools(
            pay,
            Tool(read_meter, unfinished="repeat"),
            Tool(Graph(start=Part, end=Fitted), name="fit"),
            accept=refuse_first,
        ),
    ]
    text: str

    async def __call__(self) -> None: ...


graph = Graph(start=Order, end=Done, name="workshop")
START = Order(text="two taps")


class Foreman(Backend):
    """An LM whose answer follows from the number of rounds that it sees. Each answer is an
    effect."""

    model = "foreman"
    free = True
    calls_tools = True

    async def answer(self, prompt: Prompt) -> Answer:
        target = prompt.question.target
        assert target is not None
        about = ""
        if target is Fitted:
            about = str(prompt.question.source.part)  # type: ignore[union-attr]
        rounds = sum(each.role == "assistant" for each in prompt.conversation)
        check_history(prompt)
        with effect(f"answer {target.__name__} {about} {rounds}"):
            await asyncio.sleep(0.0005)
        usage = Usage(calls=1, input_tokens=10, output_tokens=5)
        if target is Fitted:
            if rounds == 0:
                return Answer("", usage, calls=(CallPart("", "pay_part", {"bill": about}),))
            return Answer(value={"note": "fits"}, usage=usage)
        if rounds < ROUNDS:
            calls = [("pay", "bill"), ("read_meter", "meter"), ("fit", "part")]
            made = (CallPart("", name, {key: f"{key}-{rounds}"}) for name, key in calls)
            return Answer(f"round {rounds}", usage, calls=(*made,), echo={"round": rounds})
        return Answer(value={"text": "first" if rounds == ROUNDS else "second"}, usage=usage)


def check_history(prompt: Prompt) -> None:
    """Raise where a provider would refuse the conversation: each call has its result in the next
    message, and nothing else has one."""
    open_ids: list[str] = []
    for message in prompt.conversation:
        results = [part.id for part in message.parts if part.kind == "result"]
        assert sorted(results) == sorted(open_ids), f"{results} answer {open_ids}"
        open_ids = [part.id for part in message.parts if part.kind == "call"]
    assert not open_ids, f"{open_ids} have no result"


def is_right(call: dict[str, Any]) -> bool:
    """Whether a call of the finished node is right: it has its result, or, if it must not be
    repeated, it is reported as unknown."""
    name, given = call["name"], call["arguments"]
    if call["error"] is not None:
        return name.startswith("pay") and "unknown whether" in call["error"]
    match name:
        case "pay" | "pay_part":
            return call["result"] == f"{given['bill']} from the till"
        case "read_meter":
            return call["result"] == len(given["meter"])
        case _:
            inside = call["result"]
            return inside["note"] == "fits" and all(map(_is_named, inside["calls"]))


def _is_named(call: dict[str, Any]) -> bool:
    return call["name"] == "pay_part"
