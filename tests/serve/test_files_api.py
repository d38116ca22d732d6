"""Images and documents over HTTP: sent before a run, named by their hashes, and got back by those
who may see a run that has them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import httpx
import pytest

from bae import Document, Gate, Graph, Image, Node, Recall
from bae.files import MAX_BYTES
from bae.journal import MemoryJournal, SQLiteJournal
from bae.serve import User, bearer
from bae.serve.files import Uploads
from bae.testing import ScriptedLM
from file_parts import DOT, NOTE, PAPER, gif, png
from serving import TOKEN, Served, serving


class Claim(Node):
    photo: Image
    text: str = ""

    async def __call__(self) -> Seen: ...


class Seen(Node):
    photo: Annotated[Image, Recall()]
    color: str

    async def __call__(self) -> Signed:
        return Signed(photo=self.photo)


class Signed(Node):
    photo: Image
    paper: Annotated[Document, Gate("The signed paper?")]

    async def __call__(self) -> None: ...


claims = Graph(start=Claim, end=Signed, name="claims")
BYTES = {"content-type": "application/octet-stream"}
OTHER = Image.from_bytes(png(2, 2), "other.png")


def lm() -> ScriptedLM:
    return ScriptedLM([{"color": "white"}] * 4)


def files_served(**more: Any) -> Any:
    return serving(graphs={"claims": claims}, lm=lm(), **more)


async def upload(served: Served, data: bytes, name: str = "", **more: Any) -> httpx.Response:
    params = {"name": name} if name else None
    return await served.client.post(
        "/files", content=data, params=params, headers={**BYTES, **more}
    )


def by(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def start(served: Served, photo: Any, run_id: str = "one", **more: Any) -> httpx.Response:
    body = {"run_id": run_id, "start": {"photo": photo}}
    return await served.client.post("/graphs/claims/runs?wait=10", json=body, **more)


@pytest.fixture(params=["memory", "sqlite"])
async def journal(request, tmp_path):
    made = MemoryJournal() if request.param == "memory" else SQLiteJournal(tmp_path / "runs.db")
    async with made:
        yield made


async def test_an_uploaded_file_can_be_used_in_a_start_and_an_answer(journal):
    async with files_served(journal=journal) as served:
        sent = await upload(served, DOT.data, "dot.png")
        assert sent.status_code == 201
        assert sent.json() == DOT.as_json()
        run = (await start(served, sent.json())).json()
        assert run["status"] == "waiting"
        (gate,) = (await served.get("/inbox"))["gates"]
        assert gate["context"]["photo"]["value"] == DOT.as_json()
        paper = (await upload(served, PAPER.data, "paper.pdf")).json()
        answer = {"gate": gate["gate"], "value": paper}
        for _ in range(2):  # an equal answer again is no error
            await served.post("/runs/one/answers", answer)
        async for _ in served.events("one"):
            pass
        run = await served.get("/runs/one")
        assert run["result"] == {"photo": DOT.as_json(), "paper": PAPER.as_json()}
        for file, kind, how in ((DOT, "image/png", "inline"), (PAPER, "application/pdf", "attach")):
            response = await served.client.get(f"/files/{file.hash}")
            assert (response.status_code, response.content) == (200, file.data)
            assert response.headers["content-type"] == kind
            assert response.headers["x-content-type-options"] == "nosniff"
            assert response.headers["content-disposition"].startswith(how)
            assert "sandbox" in response.headers["content-security-policy"]
            assert (await served.client.get(f"/files/{file.hash[7:]}")).content == file.data
        replayed = await served.post("/runs/one/replay")
        assert replayed["outcome"] == "same", replayed
        stored = await served.journal.read("one")
        assert {**stored.files} == {DOT.hash: DOT.data, PAPER.hash: PAPER.data}
        assert len("".join(stored.answers.values())) < 500


async def test_a_user_cannot_use_a_file_of_another_user(journal):
    async with files_served(journal=journal, visible="own") as served:
        mine = (await upload(served, DOT.data)).json()
        await start(served, mine)
        assert (await upload(served, OTHER.data)).status_code == 201  # which no run has
        for hash in (DOT.hash, OTHER.hash):
            response = await served.client.get(f"/files/{hash}", headers=by("ben"))
            assert (response.status_code, response.json()["type"]) == (404, "bae-serve-file")
            for photo in (hash, {"hash": hash}):
                refused = await start(served, photo, "stolen", headers=by("ben"))
                assert refused.status_code == 422
                assert "there is no file" in refused.json()["detail"]
        assert (await start(served, DOT.data_url, "own", headers=by("ben"))).status_code == 201
        response = await served.client.get(f"/files/{DOT.hash}", headers=by("ben"))
        assert response.content == DOT.data  # ben has it by a run of his own
        (gate,) = (await served.get("/inbox", headers=by("ben")))["gates"]
        for hash in (OTHER.hash, NOTE.hash):
            body = {"gate": gate["gate"], "value": {"hash": hash}}
            refused = await served.client.post("/runs/own/answers", json=body, headers=by("ben"))
            assert (refused.status_code, refused.json()["type"]) == (422, "bae-gate-invalid")
        forked = {"at": 0, "changed": {"photo": OTHER.hash}}
        refused = await served.client.post("/runs/own/forks", json=forked, headers=by("ben"))
        assert (refused.status_code, refused.json()["type"]) == (422, "bae-fork-field")


async def test_a_fork_refers_to_a_file_by_its_hash(journal):
    async with files_served(journal=journal) as served:
        await start(served, DOT.data_url)
        await upload(served, OTHER.data, "other.png")
        for run_id, file in (("same", DOT), ("new", OTHER)):
            body = {"at": 0, "changed": {"photo": file.as_json()}, "run_id": run_id}
            await served.post("/runs/one/forks", body)
            first = await served.get(f"/runs/{run_id}/steps/0")
            assert first["fields"][0]["value"] == file.as_json()


async def test_a_fork_does_not_show_later_files_of_its_parent(journal):
    seen = {"one": False, "fork": True}
    shown = {"visible": lambda user, info: seen[info.run_id]}
    async with files_served(journal=journal, **shown) as served:
        seen["one"] = True
        await start(served, DOT.data_url)
        (gate,) = (await served.get("/inbox"))["gates"]
        answer = {"gate": gate["gate"], "value": PAPER.data_url}
        await served.post("/runs/one/answers", answer)
        async for _ in served.events("one"):
            pass
        await served.post("/runs/one/forks", {"at": 1, "run_id": "fork", "go_on": False})
        assert (await served.client.get(f"/files/{PAPER.hash}")).status_code == 200
        seen["one"] = False
        assert (await served.client.get(f"/files/{PAPER.hash}")).status_code == 404
        assert (await served.client.get(f"/files/{DOT.hash}")).status_code == 200
        assert [*(await journal.read("fork")).files] == [DOT.hash]


async def test_deleting_a_run_deletes_its_files(journal):
    async with files_served(journal=journal) as served:
        await start(served, DOT.data_url)
        assert (await served.client.get(f"/files/{DOT.hash}")).status_code == 200
        await served.post("/runs/one/cancel")
        assert (await served.client.delete("/runs/one")).status_code == 204
        assert (await served.client.get(f"/files/{DOT.hash}")).status_code == 404


HOSTILE = [
    "/etc/passwd",
    "file:///etc/passwd",
    "https://example.org/a.png",
    {"path": "/etc/passwd"},
    {"hash": "../../etc/passwd"},
    {"hash": DOT.hash},
    f"sha256:{'0' * 64}",
    "data:image/png;base64,AAAA",
    "data:text/html\r\nset-cookie: a=b;base64,PHNjcmlwdD4=",
]


@pytest.mark.parametrize("photo", HOSTILE, ids=range(len(HOSTILE)))
async def test_a_start_with_a_path_address_or_unknown_hash_is_refused(photo):
    async with files_served() as served:
        refused = await start(served, photo)
        assert refused.status_code == 422
        assert refused.json()["errors"][0]["loc"] == ["body", "start", "photo"]
        assert (await served.get("/runs"))["runs"] == []


@pytest.mark.parametrize(
    "data", [b"", b"<svg/>\0", b"\x7fELF\2\1\1\0", b"\x00\x00\x00\x18ftypheic"]
)
async def test_files_of_other_types_are_refused(data):
    async with files_served() as served:
        refused = await upload(served, data, "photo.png", **{"content-type": "image/png"})
        assert (refused.status_code, refused.json()["type"]) == (422, "bae-serve-input")


async def test_an_upload_has_a_size_limit():
    async with files_served() as served:
        large = await upload(served, b"a" * (MAX_BYTES + 1))
        assert (large.status_code, large.json()["type"]) == (413, "bae-serve-large")

        async def pieces():
            for _ in range(MAX_BYTES // 1_000_000 + 1):
                yield b"a" * 1_000_000

        sent = await served.client.post("/files", content=pieces(), headers=BYTES)
        assert (sent.status_code, sent.json()["type"]) == (413, "bae-serve-large")
        for kind in ("text/plain", "multipart/form-data; boundary=a", ""):
            form = await upload(served, DOT.data, **{"content-type": kind})
            assert (form.status_code, form.json()["type"]) == (415, "bae-serve-media")
        data = f"data:image/png;base64,{'A' * 50_000_000}"
        inline = await start(served, data)
        assert (inline.status_code, inline.json()["type"]) == (413, "bae-serve-large")
        assert "POST /files" in inline.json()["fix"]
        json_there = await served.client.post(
            "/graphs/claims/runs", content=DOT.data, headers={"content-type": "image/png"}
        )
        assert json_there.status_code == 415
        for token, status in (("eve", 403), ("nobody", 401)):
            assert (await upload(served, DOT.data, **by(token))).status_code == status


async def test_hostile_file_names_and_hashes_cannot_inject_headers_or_paths():
    async with files_served() as served:
        name = 'a"\r\nset-cookie: a=b\u202e.png'
        sent = (await upload(served, DOT.data, name)).json()
        assert sent["name"] == 'a"__set-cookie: a=b_.png'
        response = await served.client.get(f"/files/{DOT.hash}")
        assert "set-cookie" not in response.headers
        for hash in ("..%2f..%2fetc%2fpasswd", "sha256:", DOT.hash.upper(), f"{DOT.hash}0", "%00"):
            assert (await served.client.get(f"/files/{hash}")).status_code == 404


async def test_a_user_with_only_the_answer_right_can_upload_a_file():
    users = bearer({TOKEN: User("ana"), "ida": User("ida", frozenset({"answer"}))})
    async with files_served(auth=users) as served:
        assert (await upload(served, NOTE.data, **by("ida"))).status_code == 201
        assert (
            await served.client.get(f"/files/{NOTE.hash}", headers=by("ida"))
        ).status_code == 403


async def test_the_openapi_document_explains_file_uploads():
    async with files_served() as served:
        document = await served.get("/openapi.json")
        upload_it = document["paths"]["/files"]["post"]
        assert [*upload_it["requestBody"]["content"]] == ["application/octet-stream"]
        photo = document["components"]["schemas"]["claims_start"]["properties"]["photo"]
        assert "data URL" in json.dumps(photo)


def test_new_uploads_replace_older_unused_uploads_of_the_same_user(monkeypatch):
    from bae.serve import files

    monkeypatch.setattr(files, "MOST_OF_USER", 2 * DOT.size)
    uploads = Uploads()
    first, second, third = (Image.from_bytes(png(shade=n)) for n in (1, 2, 3))
    uploads.add("ben", first)
    for file in (first, second, third):
        uploads.add("ana", file)
    assert [uploads.find("ana", f.hash) for f in (first, second, third)] == [None, second, third]
    assert uploads.find("ben", first.hash) == first
    assert uploads.find("ben", second.hash) is None
    monkeypatch.setattr(files, "MOST_OF_ALL", 3 * DOT.size)
    with pytest.raises(files.Refused, match="the uploads of all users"):
        uploads.add("eve", Image.from_bytes(gif() + b"0" * 100))
