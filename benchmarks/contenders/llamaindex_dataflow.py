"""LlamaIndex Workflows on the uneven dependency graph: a step per value, an event type per edge.

A step with two event parameters waits for both, which is the library's own way to join.
"""

from __future__ import annotations

from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from benchmarks.contenders import DataflowRun
from benchmarks.work import observe


class Value(Event):
    value: int


class North(Value): ...


class South(Value): ...


class East(Value): ...


class Rain(Value): ...


class Wind(Value): ...


class Tide(Value): ...


class Storm(Value): ...


class Swell(Value): ...


class Alert(Value): ...


class Forecast(Value): ...


class Weather(StopEvent):
    alert: int
    forecast: int


class Dataflow(Workflow):
    @step
    async def north(self, ev: StartEvent) -> North:
        return North(value=await observe("north"))

    @step
    async def south(self, ev: StartEvent) -> South:
        return South(value=await observe("south"))

    @step
    async def east(self, ev: StartEvent) -> East:
        return East(value=await observe("east"))

    @step
    async def rain(self, north: North) -> Rain:
        return Rain(value=await observe("rain", north.value))

    @step
    async def wind(self, south: South) -> Wind:
        return Wind(value=await observe("wind", south.value))

    @step
    async def tide(self, north: North, east: East) -> Tide:
        return Tide(value=await observe("tide", north.value, east.value))

    @step
    async def storm(self, rain: Rain, wind: Wind) -> Storm:
        return Storm(value=await observe("storm", rain.value, wind.value))

    @step
    async def swell(self, wind: Wind, tide: Tide) -> Swell:
        return Swell(value=await observe("swell", wind.value, tide.value))

    @step
    async def alert(self, storm: Storm) -> Alert:
        return Alert(value=await observe("alert", storm.value))

    @step
    async def forecast(self, swell: Swell) -> Forecast:
        return Forecast(value=await observe("forecast", swell.value))

    @step
    async def answer(self, alert: Alert, forecast: Forecast) -> Weather:
        return Weather(alert=alert.value, forecast=forecast.value)


def dataflow() -> DataflowRun:
    workflow = Dataflow(timeout=None)

    async def run() -> tuple[int, int]:
        weather = await workflow.run(start_event=StartEvent())
        return weather.alert, weather.forecast

    return run
