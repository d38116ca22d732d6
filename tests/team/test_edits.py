"""Edits of an LLM: what is written is what was meant, all of it or nothing, and only inside."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae.team.edit_format import (
    Deletion,
    EditError,
    EditFormat,
    Replacement,
    WholeFile,
    format_instructions,
    parse_answer,
)
from bae.team.edits import LARGEST_FILE, apply_answer, plan_changes, write_changes
from written_edits import render_answer, whole_file

some = settings(max_examples=25, derandomize=True, deadline=None)
marks = st.sampled_from(
    [
        "",
        "=======",
        "========",
        "<<<<<<< SEARCH a",
        "<<<<<<<< FILE b",
        ">>>>>>> REPLACE",
        ">>>>>>> FILE",
        "```",
        "```python",
        "    x = 1",
        "\tx",
        "x = 1",
        "<<<<<<< DELETE c",
        "é\u2028",
    ]
)
line = marks | st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8"), max_size=12)
lines = st.lists(line, max_size=12).map(tuple)
paths = st.sampled_from(["a.txt", "deep/er/b.md", ".github/c.yml", "d e.txt", "ünï.txt"])


def applied(root: Path, answer: str) -> dict[str, str | None]:
    changes = asyncio.run(apply_answer(root, answer))
    return {each.path: None if each.after is None else each.after.decode() for each in changes}


def contents(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def block(path: str, search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH {path}\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


@some
@given(st.dictionaries(paths, lines, min_size=1))
def test_a_whole_file_is_written_as_it_was_meant_whatever_is_in_it(
    files: dict[str, tuple[str, ...]],
):
    edits = [WholeFile(path, text) for path, text in files.items()]
    answer = f"Here it is:\n\n{render_answer(edits)}\nDone."
    assert parse_answer(answer) == tuple(edits)

    with tempfile.TemporaryDirectory() as folder:
        applied(Path(folder), answer)

        meant = {path: "".join(f"{each}\n" for each in text) for path, text in files.items()}
        assert contents(Path(folder)) == {path: text.encode() for path, text in meant.items()}


@some
@given(lines, lines, lines, lines, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_replaced_block_leaves_every_other_byte_as_it_was(
    above: tuple[str, ...],
    old: tuple[str, ...],
    new: tuple[str, ...],
    below: tuple[str, ...],
    line_break: str,
    ends: bool,
):
    old = ("the only one", *old)  # so that the place is clear
    new = ("another", *new)

    def text(middle: tuple[str, ...]) -> bytes:
        end = line_break if ends else ""
        return (line_break.join((*above, *middle, *below, "last")) + end).encode()

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_bytes(text(old))

        applied(Path(folder), render_answer([Replacement("a.txt", old, new)]))

        # A text with no line break at all, or with mixed ones, has the plain one.
        assert (Path(folder) / "a.txt").read_bytes() == text(new)


@some
@given(st.lists(st.tuples(paths, lines), min_size=1, max_size=4), st.integers(0, 4))
def test_one_bad_edit_among_many_changes_nothing(files: list[tuple[str, tuple[str, ...]]], at: int):
    bad = [Replacement("here.txt", ("not there",), ("x",)), Deletion("nowhere.txt")]
    bad += [WholeFile("../out.txt", ("x",)), WholeFile("here.txt/below", ("x",))]
    for each in bad:
        with tempfile.TemporaryDirectory() as outer:
            root = Path(outer) / "root"
            root.mkdir()
            (root / "here.txt").write_text("here\n")
            edits = [WholeFile(path, text) for path, text in files]
            edits.insert(min(at, len(edits)), each)  # type: ignore[arg-type]

            with pytest.raises(EditError):
                applied(root, render_answer(edits))

            assert contents(Path(outer)) == {"root/here.txt": b"here\n"}


@pytest.mark.parametrize(
    "path",
    [
        *(
            "../a.txt",
            "a/../../b",
            "/etc/passwd",
            "//x",
            ".git/hooks/pre-commit",
            "docs/.gitattributes",
            ".worktreeinclude",
            ".WorktreeInclude",
            "sub/.GIT/config",
        ),
        *(".git", ".git./x", "..", "~/x", "~root/x", "C:\\x", "C:/x", "a\\..\\b", "link/x", "link"),
        *(
            "file_link",
            "a\x1bb",
            "a\tb",
            "dir",
            "pipe",
            "x" * 300,
            "y/" * 600 + "z",
            "dangling",
            "",
        ),
    ],
)
def test_a_hostile_path_is_refused_and_nothing_is_written(tmp_path: Path, path: str):
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / ".git").mkdir(parents=True)
    (root / "dir").mkdir()
    outside.mkdir()
    (outside / "x").write_text("old\n")
    (root / "link").symlink_to(outside)
    (root / "file_link").symlink_to(outside / "x")
    (root / "dangling").symlink_to(outside / "new")
    os.mkfifo(root / "pipe")
    before = contents(tmp_path)

    for edit in (WholeFile(path, ("bad",)), Deletion(path), Replacement(path, ("old",), ("bad",))):
        with pytest.raises(EditError):
            plan_changes(root, [edit])
        with pytest.raises(EditError):
            applied(root, render_answer([WholeFile("good.txt", ("good",)), edit]))

    assert contents(tmp_path) == before


def test_binary_and_huge_files_are_neither_edited_nor_written(tmp_path: Path):
    (tmp_path / "binary").write_bytes(b"a\0b")
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "huge").write_bytes(b"x\n" * LARGEST_FILE)
    before = contents(tmp_path)
    bad = [Replacement(name, ("x",), ("y",)) for name in ("binary", "latin", "huge")]
    bad += [WholeFile("new", ("a\0b",)), WholeFile("new", ("x" * LARGEST_FILE,))]
    bad += [WholeFile("new", ("\ud800",))]

    for edit in bad:
        with pytest.raises(EditError, match="no file was changed"):
            applied(tmp_path, render_answer([edit]))
    with pytest.raises(EditError, match="characters"):
        applied(tmp_path, "x" * 5_000_000)

    assert contents(tmp_path) == before


def test_a_write_that_fails_takes_back_those_before_it(tmp_path: Path):
    (tmp_path / "run.sh").write_text("old\n")
    (tmp_path / "run.sh").chmod(0o755)
    edits = [whole_file("run.sh", "new\n"), whole_file("x/y/z.txt", "z\n"), whole_file("q", "q\n")]
    changes = plan_changes(tmp_path, edits)
    (tmp_path / "q").mkdir()

    with pytest.raises(EditError, match="q is not a file"):
        write_changes(tmp_path, changes)

    assert contents(tmp_path) == {"run.sh": b"old\n"}
    assert not (tmp_path / "x").exists()
    assert os.access(tmp_path / "run.sh", os.X_OK)


def test_a_file_that_is_rewritten_keeps_its_permissions_and_its_other_name_the_old_text(
    tmp_path: Path,
):
    root = tmp_path / "root"
    root.mkdir()
    (root / "run.sh").write_text("old\n")
    (root / "run.sh").chmod(0o750)
    os.link(root / "run.sh", tmp_path / "other")

    applied(root, render_answer([whole_file("run.sh", "new\n")]))

    assert (root / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "other").read_text() == "old\n"


PYTHON = "class A:\n    def f(self):\n        x  = 1\n        return x\n\n    def g(self): ...\n"


def test_lines_are_found_without_their_indentation_and_indented_as_the_file_is(tmp_path: Path):
    (tmp_path / "a.py").write_text(PYTHON)
    search = "def f(self):\n    x = 1\n    return x"
    replace = "def f(self):\n    x = 1\n    if x:\n        x += 1\n    return x"

    after = applied(tmp_path, block("a.py", search, replace))["a.py"]

    expected = "        x  = 1\n        if x:\n            x += 1\n"
    assert after == PYTHON.replace("        x  = 1\n", expected)


def test_tabs_are_kept_where_the_llm_wrote_spaces(tmp_path: Path):
    (tmp_path / "a.py").write_text("if a:\n\tif b:\n\t\tc()\n")

    after = applied(
        tmp_path, block("a.py", "if a:\n    if b:\n        c()", "if a:\n    if d:\n        c()")
    )

    assert after == {"a.py": "if a:\n\tif d:\n\t\tc()\n"}


def test_a_miss_names_the_nearest_lines_that_there_are(tmp_path: Path):
    text = "".join(f"def f{n}(value):\n    return value + {n}\n\n\n" for n in range(500))
    (tmp_path / "a.py").write_text(text)

    with pytest.raises(EditError) as raised:
        applied(tmp_path, block("a.py", "def f321(value, more):\n    return value", "x"))

    assert "def f321(value):\n    return value + 321" in raised.value.reasons[0]
    assert raised.value.missed == ("a.py",)
    assert len(raised.value.reasons[0]) < 1000


def test_lines_that_are_there_twice_are_not_guessed_at(tmp_path: Path):
    (tmp_path / "a.py").write_text("a\nb\na\n")

    with pytest.raises(EditError, match=r"more than once \(from lines 1, 3\)"):
        applied(tmp_path, block("a.py", "a", "x"))


def test_all_reasons_of_an_answer_are_told_together(tmp_path: Path):
    (tmp_path / "a.py").write_text("a\n")
    answer = block("a.py", "b", "c") + block("gone.py", "b", "c") + "<<<<<<< DELETE ../x\n"

    with pytest.raises(EditError) as raised:
        applied(tmp_path, answer)

    assert len(raised.value.reasons) == 3
    assert all(problem in str(raised.value) for problem in raised.value.reasons)


def test_later_blocks_see_what_earlier_ones_wrote_and_deletions_remove(tmp_path: Path):
    (tmp_path / "a.py").write_text("a\n")
    (tmp_path / "b.py").write_text("b\n")
    answer = block("a.py", "a", "x\ny") + block("./a.py", "y", "z") + "<<<<<<< DELETE b.py\n"

    assert applied(tmp_path, answer) == {"a.py": "x\nz\n", "b.py": None}
    assert contents(tmp_path) == {"a.py": b"x\nz\n"}


@pytest.mark.parametrize(
    "line",
    ["# ... rest of the file unchanged", "// … existing code …", "    # ... same as before"],
)
def test_a_file_with_parts_left_out_is_refused(tmp_path: Path, line: str):
    (tmp_path / "a.py").write_text("a\nb\n")

    with pytest.raises(EditError, match="in place of code"):
        applied(tmp_path, render_answer([whole_file("a.py", f"a\n{line}\n")]))


def test_the_way_other_tools_write_blocks_is_read_too():
    answer = (
        "Sure!\n\n**src/a.py**\n```python\n<<<<<<< SEARCH\na\n=======\nb\n>>>>>>> REPLACE\n```\n"
        "and\n<<<<<<< SEARCH\nc\n=======\n>>>>>>> REPLACE\n"
        "<<<<<<< FILE b.py\n```python\nx = 1\n```\n>>>>>>> FILE\n"
    )

    assert parse_answer(answer) == (
        Replacement("src/a.py", ("a",), ("b",)),
        Replacement("src/a.py", ("c",), ()),
        WholeFile("b.py", ("x = 1",)),
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I cannot do that.", "no edit"),
        ("<<<<<<< FILE a.py\nx = 1\n", "in line 1 has no end"),
        ("<<<<<<< SEARCH a.py\nx\n=======\n<<<<<<< FILE b\n>>>>>>> FILE\n", "has no end"),
        ("<<<<<<< SEARCH a.py\nx\n>>>>>>> REPLACE", "0 lines of 7 equal signs"),
        ("<<<<<<< SEARCH a\nx\n=======\n=======\n>>>>>>> REPLACE", "longer markers"),
    ],
)
def test_an_answer_that_is_cut_off_or_unclear_is_refused_with_what_to_do(answer: str, reason: str):
    with pytest.raises(EditError, match=reason):
        parse_answer(answer)


@pytest.mark.parametrize("form", ["auto", "whole", "blocks"])
def test_the_format_that_an_llm_is_shown_can_be_read(form: EditFormat):
    edits = parse_answer(format_instructions(form))

    assert {edit.path for edit in edits} == {"path/to/file.py"}
    assert any(isinstance(edit, WholeFile) for edit in edits) == (form != "blocks")
    assert any(isinstance(edit, Replacement) for edit in edits) == (form != "whole")


def test_a_huge_search_in_a_huge_file_is_answered_in_seconds(tmp_path: Path):
    (tmp_path / "a.txt").write_text("\n" * 900_000)
    edits = [Replacement("a.txt", ("",) * 300_000, ("x",))]
    edits += [Replacement("a.txt", (*("",) * 300_000, "y"), ("x",))]

    with pytest.raises(EditError) as raised:
        plan_changes(tmp_path, edits)

    assert len(raised.value.reasons) == 2
