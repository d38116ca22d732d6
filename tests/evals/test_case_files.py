"""Images and documents in cases: a file beside the cases, named by its path, or a data URL."""

from __future__ import annotations

import json

import pytest

from bae import BaeError, Document, Graph, Image, Node
from bae.evals import evaluate, load_cases
from bae.testing import ScriptedLM
from file_parts import DOT, NOTE


class Claim(Node):
    text: str
    photo: Image
    papers: list[Document] = []

    async def __call__(self) -> Seen: ...


class Seen(Node):
    color: str

    async def __call__(self) -> None: ...


GRAPH = Graph(start=Claim, end=Seen)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "secret.png").write_bytes(DOT.data)
    cases = tmp_path / "cases"
    (cases / "photos").mkdir(parents=True)
    (cases / "photos" / "dot.png").write_bytes(DOT.data)
    (cases / "note.txt").write_bytes(NOTE.data)
    return cases


def write_cases(folder, **inputs):
    case = {"input": {"text": "@who", **inputs}, "expected": {"color": "white"}}
    path = folder / "cases.jsonl"
    path.write_text(json.dumps(case) + "\n")
    return path


async def test_a_case_may_name_files_beside_its_dataset(folder):
    path = write_cases(folder, photo="@photos/dot.png", papers=["@note.txt", NOTE.data_url])
    lm = ScriptedLM([{"color": "white"}])
    await evaluate(GRAPH, load_cases(path, GRAPH), {"scripted": lm})
    assert [part.file for part in lm.prompts[0].files][:2] == [DOT, NOTE]
    assert '"text":"@who"' in lm.prompts[0].text


@pytest.mark.parametrize(
    ("photo", "why"),
    [
        ("@../secret.png", "not in the folder of the cases"),
        ("@/etc/passwd", "not in the folder of the cases"),
        ("@photos/../../secret.png", "not in the folder of the cases"),
        ("@link.png", "not in the folder of the cases"),
        ("@nothing.png", "No such file"),
        ("@note.txt", "no JPEG"),
        ("photos/dot.png", "data URL"),
    ],
)
def test_a_file_path_outside_the_dataset_folder_is_refused_before_the_first_run(photo, why, folder):
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    with pytest.raises(BaeError) as raised:
        load_cases(write_cases(folder, photo=photo), GRAPH)
    assert raised.value.code == "bae-cases-invalid"
    assert why in raised.value.message


def test_a_dataset_of_pydantic_evals_names_files_too(folder):
    pytest.importorskip("pydantic_evals")
    path = folder / "cases.json"
    case = {"name": "a", "inputs": {"text": "x", "photo": "@photos/dot.png"}}
    path.write_text(json.dumps({"cases": [case]}))
    (found,) = load_cases(path, GRAPH)
    assert found.inputs["photo"]["name"] == "dot.png"
