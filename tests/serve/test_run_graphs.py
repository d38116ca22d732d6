"""The picture of a run: the way that it took, the graphs inside it, and the fields that a fork may
change; with the graph and without."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field, SecretStr

from bae import Gate, Graph, Map, Node
from bae.journal import MemoryJournal, SQLiteJournal
from serving import orders, orders_with, serving


class Word(Node):
    text: str

    async def __call__(self) -> None: ...


class Measure(Node):
    text: str

    async def __call__(self) -> Measured:
        return Measured(length=len(self.text))


class Measured(Node):
    length: int

    async def __call__(self) -> None: ...


measures = Graph(start=Measure, end=Measured, name="measures")


class Essay(Node):
    words: list[str]

    async def __call__(self) -> Draft:
        return Draft(words=self.words)


class Draft(Node):
    words: list[str]
    lengths: Annotated[list[Measured], Map(measures, over="words")] = Field(init=False)
    round: Annotated[int, Field(ge=1, le=9)] = 1

    async def __call__(self) -> Draft | Review:
        if self.round < 3:
            return Draft(words=self.words, round=self.round + 1)
        return Review()


class Review(Node):
    approved: Annotated[bool, Gate("Fine?")] = Field(init=False)

    async def __call__(self) -> None: ...


class Login(Node):
    name: str
    key: SecretStr

    async def __call__(self) -> Word:
        return Word(text=self.name)


logins = Graph(start=Login, end=Word, name="logins")
essays = Graph(start=Essay, end=Review, name="essays")
START = {"words": ["a", "bcd"]}


def boxes_of(picture: Any) -> dict[str, Any]:
    return {box["node"]: box for box in picture["boxes"]}


@pytest.mark.parametrize("is_served", [True, False], ids=["served", "journal alone"])
async def test_the_picture_of_a_run_has_its_path_even_if_its_graph_is_not_served(is_served: bool):
    journal = MemoryJournal()
    async with serving(journal, graphs={"essays": essays}) as served:
        body = {"run_id": "one", "start": START}
        await served.post("/graphs/essays/runs?wait=10", body)
        known = await served.get("/graphs/essays")
        if is_served:
            picture = await served.get("/runs/one/graph")
    if not is_served:
        async with serving(journal, graphs={}) as served:
            picture = await served.get("/runs/one/graph")
    boxes = boxes_of(picture)
    assert (picture["graph"], picture["status"], picture["classes"]) == ("essays", "waiting", "run")
    visits = {name: (box["visits"], box["is_current"]) for name, box in boxes.items()}
    assert visits == {"Essay": (1, False), "Draft": (3, False), "Review": (1, True)}
    assert [name for name, box in boxes.items() if box["is_start"]] == ["Essay"]
    assert [name for name, box in boxes.items() if box["ends"]] == ["Review"]
    taken = {(edge["source"], edge["target"]): edge["taken"] for edge in picture["edges"]}
    assert taken == {("Essay", "Draft"): 1, ("Draft", "Draft"): 2, ("Draft", "Review"): 1}
    [own] = [edge for edge in picture["edges"] if edge["source"] == edge["target"]]
    assert (own["chosen_by"], len(own["line"]) >= 4) == ("code", True)
    kinds = {field["name"]: (field["kind"], field["graph"]) for field in boxes["Draft"]["fields"]}
    assert kinds["lengths"] == ("map", "measures")
    assert kinds["words"][1] is None
    # The same places as in the picture of the graph alone.
    places = {box["node"]: (box["x"], box["y"], box["width"]) for box in known["boxes"]}
    assert places == {name: (box["x"], box["y"], box["width"]) for name, box in boxes.items()}
    assert picture["problems"] == (known["problems"] if is_served else [])


async def test_inner_graphs_have_pictures_before_they_start():
    async with serving(graphs={"essays": essays}) as served:
        await served.post("/graphs/essays/runs?wait=10", {"run_id": "one", "start": START})
        picture = await served.get("/runs/one/graph")
        assert picture["inner_total"] == 6
        first = picture["inner"][0]
        assert {**first, "path": ""} == {
            "path": "",
            "graph": "measures",
            "node": "Draft",
            "step": 1,
            "field": "lengths",
            "nodes": 2,
            "outcome": "ended",
        }
        inner = await served.get("/runs/one/graph", params={"path": first["path"]})
        boxes = boxes_of(inner)
        assert {name: box["visits"] for name, box in boxes.items()} == {"Measure": 1, "Measured": 1}
        assert not any(box["is_current"] for box in boxes.values())
        ahead = await served.get("/runs/one/graph", params={"path": "9:Draft.lengths"})
        assert {box["visits"] for box in ahead["boxes"]} == {0}
        for path in ("9:Draft.words", "none", "1:None.lengths"):
            refused = await served.client.get("/runs/one/graph", params={"path": path})
            assert (refused.status_code, refused.json()["type"]) == (404, "bae-serve-path"), path


async def test_the_picture_of_a_run_shows_the_classes_at_its_start(tmp_path: Path):
    async with SQLiteJournal(str(tmp_path / "runs.db")) as journal:
        async with serving(journal) as served:
            await served.start(count=20, run_id="asks")
        changed = orders_with("Price | Approval", "Price | Approval | Refusal")
        async with serving(journal, graphs={"orders": changed}, recover=False) as served:
            run, now = await served.get("/runs/asks/graph"), await served.get("/graphs/orders")
    ways = {(edge["source"], edge["target"]) for edge in run["edges"]}
    assert ("Order", "Refusal") not in ways
    assert ("Order", "Refusal") in {(edge["source"], edge["target"]) for edge in now["edges"]}
    assert run["problems"] == []


async def test_a_fork_form_has_the_fields_with_their_values_and_schemas():
    async with serving(graphs={"essays": essays, "logins": logins}) as served:
        await served.post("/graphs/essays/runs?wait=10", {"run_id": "one", "start": START})
        login = {"run_id": "keyed", "start": {"name": "ana", "key": "hidden"}}
        await served.post("/graphs/logins/runs?wait=10", login)
        form = await served.get("/runs/one/steps/2/fork")
        fields = {field["name"]: field for field in form["fields"]}
        assert (form["at"], form["node"], [*fields]) == (2, "Draft", ["words", "lengths", "round"])
        assert fields["round"]["value"] == 2
        schema = fields["round"]["field_schema"]
        assert (schema["type"], schema["minimum"], schema["maximum"]) == ("integer", 1, 9)
        assert not any(field["needed"] for field in form["fields"])
        body = {"at": 2, "changed": {"round": 3}, "run_id": "two"}
        assert (await served.post("/runs/one/forks", body))["parent"] == "one"
        secret = {f["name"]: f for f in (await served.get("/runs/keyed/steps/0/fork"))["fields"]}
        assert (secret["key"]["value"], "hidden" in str(secret)) == (None, False)
        assert {name: field["needed"] for name, field in secret.items()} == {
            "name": False,
            "key": True,
        }
        for step in ("4", "99"):  # it waits for its gate; it is not there
            refused = await served.client.get(f"/runs/one/steps/{step}/fork")
            assert (refused.status_code, refused.json()["type"]) == (404, "bae-fork-step")


async def test_a_fork_form_needs_the_graph():
    journal = MemoryJournal()
    async with serving(journal, graphs={"orders": orders}) as served:
        await served.start(run_id="one")
    async with serving(journal, graphs={}) as served:
        refused = await served.client.get("/runs/one/steps/0/fork")
        assert (refused.status_code, refused.json()["type"]) == (409, "bae-serve-graph")
