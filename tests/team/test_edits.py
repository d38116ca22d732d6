"""Edits of an LLM: written as intended, completely or not at all, and only inside the
repository."""

from __future__ import annotations

import asyncio
import difflib
import os
import re
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bae.team.edit_format import (
    Deletion,
    Edit,
    EditError,
    EditFormat,
    Replacement,
    WholeFile,
    format_instructions,
    parse_answer,
)
from bae.team.edits import LARGEST_FILE, apply_answer, plan_changes, write_changes
from bae.team.unified_diffs import Hunk
from written_edits import render_answer, render_fenced, whole_file

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


def apply_to(root: Path, answer: str) -> dict[str, str | None]:
    changes = asyncio.run(apply_answer(root, answer))
    return {
        change.path: None if change.after is None else change.after.decode() for change in changes
    }


def contents(root: Path) -> dict[str, bytes]:
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def block(path: str, search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH {path}\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


@some
@given(st.dictionaries(paths, lines, min_size=1))
def test_a_complete_file_with_any_content_is_written_unchanged(
    files: dict[str, tuple[str, ...]],
):
    edits = [WholeFile(path, text) for path, text in files.items()]
    answer = f"Here it is:\n\n{render_answer(edits)}\nDone."
    assert parse_answer(answer) == tuple(edits)

    with tempfile.TemporaryDirectory() as folder:
        apply_to(Path(folder), answer)

        meant = {path: "".join(f"{line}\n" for line in text) for path, text in files.items()}
        assert contents(Path(folder)) == {path: text.encode() for path, text in meant.items()}


@some
@given(lines, lines, lines, lines, st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_a_replaced_block_leaves_every_other_byte_unchanged(
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

        apply_to(Path(folder), render_answer([Replacement("a.txt", old, new)]))

        # A text with no line break at all, or with mixed ones, has the plain one.
        assert (Path(folder) / "a.txt").read_bytes() == text(new)


@some
@given(st.lists(st.tuples(paths, lines), min_size=1, max_size=4), st.integers(0, 4))
def test_a_bad_edit_among_many_prevents_all_changes(
    files: list[tuple[str, tuple[str, ...]]], at: int
):
    bad = [Replacement("here.txt", ("not there",), ("x",)), Deletion("nowhere.txt")]
    bad += [WholeFile("../out.txt", ("x",)), WholeFile("here.txt/below", ("x",))]
    for answer in bad:
        with tempfile.TemporaryDirectory() as outer:
            root = Path(outer) / "root"
            root.mkdir()
            (root / "here.txt").write_text("here\n")
            edits = [WholeFile(path, text) for path, text in files]
            edits.insert(min(at, len(edits)), answer)  # type: ignore[arg-type]

            with pytest.raises(EditError):
                apply_to(root, render_answer(edits))

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
        *(".git\u200c/config", ".gitattributes.", ".git\u200dmodules", ".worktreeinclude "),
        *(".git", ".git./x", "..", "~/x", "~root/x", "C:\\x", "C:/x", "a\\..\\b", "link/x", "link"),
        *(
            "file_link",
            "a\x1bb",
            "a\tb",
            "a\x9b2Jb.py",
            "\u202egnp.py",
            "a\u2028b.py",
            "dir",
            "pipe",
            "x" * 300,
            "y/" * 600 + "z",
            "dangling",
            "",
        ),
    ],
)
def test_a_hostile_path_is_refused_without_any_write(tmp_path: Path, path: str):
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
            apply_to(root, render_answer([WholeFile("good.txt", ("good",)), edit]))

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
            apply_to(tmp_path, render_answer([edit]))
    with pytest.raises(EditError, match="characters"):
        apply_to(tmp_path, "x" * 5_000_000)

    assert contents(tmp_path) == before


def test_a_failed_write_reverts_the_writes_before_it(tmp_path: Path):
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


def test_a_rewritten_file_keeps_its_permissions(
    tmp_path: Path,
):
    root = tmp_path / "root"
    root.mkdir()
    (root / "run.sh").write_text("old\n")
    (root / "run.sh").chmod(0o750)
    os.link(root / "run.sh", tmp_path / "other")

    apply_to(root, render_answer([whole_file("run.sh", "new\n")]))

    assert (root / "run.sh").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "other").read_text() == "old\n"


PYTHON = "class A:\n    def f(self):\n        x  = 1\n        return x\n\n    def g(self): ...\n"


def test_wrongly_indented_lines_are_found_and_reindented(tmp_path: Path):
    (tmp_path / "a.py").write_text(PYTHON)
    search = "def f(self):\n    x = 1\n    return x"
    replace = "def f(self):\n    x = 1\n    if x:\n        x += 1\n    return x"

    after = apply_to(tmp_path, block("a.py", search, replace))["a.py"]

    expected = "        x  = 1\n        if x:\n            x += 1\n"
    assert after == PYTHON.replace("        x  = 1\n", expected)


def test_tabs_are_kept_if_the_llm_wrote_spaces(tmp_path: Path):
    (tmp_path / "a.py").write_text("if a:\n\tif b:\n\t\tc()\n")

    after = apply_to(
        tmp_path, block("a.py", "if a:\n    if b:\n        c()", "if a:\n    if d:\n        c()")
    )

    assert after == {"a.py": "if a:\n\tif d:\n\t\tc()\n"}


def test_a_missing_search_block_names_the_nearest_lines(tmp_path: Path):
    text = "".join(f"def f{n}(value):\n    return value + {n}\n\n\n" for n in range(500))
    (tmp_path / "a.py").write_text(text)

    with pytest.raises(EditError) as raised:
        apply_to(tmp_path, block("a.py", "def f321(value, more):\n    return value", "x"))

    assert "def f321(value):\n    return value + 321" in raised.value.reasons[0]
    assert raised.value.missed == ("a.py",)
    assert len(raised.value.reasons[0]) < 1000


def test_an_ambiguous_search_block_is_refused(tmp_path: Path):
    (tmp_path / "a.py").write_text("a\nb\na\n")

    with pytest.raises(EditError, match=r"more than once \(from lines 1, 3\)"):
        apply_to(tmp_path, block("a.py", "a", "x"))


def test_all_errors_of_an_answer_are_reported_together(tmp_path: Path):
    (tmp_path / "a.py").write_text("a\n")
    answer = block("a.py", "b", "c") + block("gone.py", "b", "c") + "<<<<<<< DELETE ../x\n"

    with pytest.raises(EditError) as raised:
        apply_to(tmp_path, answer)

    assert len(raised.value.reasons) == 3
    assert all(problem in str(raised.value) for problem in raised.value.reasons)


def test_later_blocks_see_the_writes_of_earlier_blocks(tmp_path: Path):
    (tmp_path / "a.py").write_text("a\n")
    (tmp_path / "b.py").write_text("b\n")
    answer = block("a.py", "a", "x\ny") + block("./a.py", "y", "z") + "<<<<<<< DELETE b.py\n"

    assert apply_to(tmp_path, answer) == {"a.py": "x\nz\n", "b.py": None}
    assert contents(tmp_path) == {"a.py": b"x\nz\n"}


def test_a_file_can_replace_a_folder_whose_files_are_removed(tmp_path: Path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "c.txt").write_text("c\n")

    apply_to(tmp_path, "<<<<<<< DELETE a/b/c.txt")
    apply_to(tmp_path, render_answer([WholeFile("a", ("a file",))]))

    assert (tmp_path / "a").read_text() == "a file\n"


@pytest.mark.parametrize(
    "line",
    ["# ... rest of the file unchanged", "// … existing code …", "    # ... same as before"],
)
def test_a_file_with_omitted_parts_is_refused(tmp_path: Path, line: str):
    (tmp_path / "a.py").write_text("a\nb\n")

    with pytest.raises(EditError, match="in place of code"):
        apply_to(tmp_path, render_answer([whole_file("a.py", f"a\n{line}\n")]))


def test_edit_blocks_in_the_style_of_other_tools_are_read():
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
def test_a_truncated_or_unclear_answer_is_refused_with_a_fix(answer: str, reason: str):
    with pytest.raises(EditError, match=reason):
        parse_answer(answer)


def diff_texts(path: str, old: str, new: str) -> str:
    """What difflib writes, with the mark of git for a last line without a break."""
    first, second = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (old, new))
    diff = difflib.unified_diff(first, second, f"a/{path}", f"b/{path}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff
    )


def join_lines(parts: list[str], ends: bool) -> str:
    return "\n".join(parts) + ("\n" if ends and parts else "")


texts = st.builds(
    join_lines,
    st.lists(st.sampled_from(["a", "b", "", "-- x", "++ y", "@@ -1 +1 @@", "```", "  c"]) | line),
    st.booleans(),
)


@settings(some, max_examples=100)
@given(texts, texts, st.sampled_from(["{}", "```diff\n{}```\n", "So:\n\n{}\n- done\n"]))
def test_a_diff_of_any_two_texts_produces_the_new_text(old: str, new: str, around: str):
    diff = diff_texts("a.txt", old, new)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_bytes(old.encode())
        if old == new:
            with pytest.raises(EditError):
                apply_to(Path(folder), around.format(diff))
        else:
            apply_to(Path(folder), around.format(diff))

        assert contents(Path(folder)) == {"a.txt": new.encode()}


@settings(some, max_examples=8)
@given(st.dictionaries(paths, st.tuples(texts, texts), min_size=1))
def test_a_diff_by_git_reproduces_the_new_files(files: dict[str, tuple[str, str]]):
    with tempfile.TemporaryDirectory() as folder:
        trees = [Path(folder, name) for name in "ab"]
        for number, tree in enumerate(trees):
            tree.mkdir()
            for path, both in files.items():
                # An empty text is no file, unless both are.
                if both[number] or both == ("", ""):
                    (tree / path).parent.mkdir(parents=True, exist_ok=True)
                    (tree / path).write_bytes(both[number].encode())
        command = ["git", "diff", "--no-index", "--no-prefix", "--no-renames", "--text", "a", "b"]
        diff = subprocess.run(command, cwd=folder, capture_output=True, check=False).stdout.decode()
        if diff:
            apply_to(trees[0], diff)

        assert contents(trees[0]) == contents(trees[1])


@some
@given(
    st.lists(
        st.builds(WholeFile, paths, lines)
        | st.builds(Deletion, paths)
        | st.builds(Replacement, paths, lines, lines)
        | st.builds(
            Hunk, paths, lines.filter(bool), lines.filter(bool), st.integers(0, 9), st.none()
        ),
        min_size=1,
        max_size=5,
    )
)
def test_edits_of_every_kind_survive_a_round_trip(edits: list[Edit]):
    assert parse_answer(f"Here:\n\n{render_answer(edits)}\nDone.") == tuple(edits)


def read_or_refuse(answer: str) -> tuple[Edit, ...] | str:
    try:
        return parse_answer(answer)
    except EditError as error:
        return "\n".join(error.reasons)


fenced = st.builds(
    WholeFile,
    paths.filter(lambda path: " " not in path),
    lines.map(
        lambda parts: ("# first", *parts)
    ),  # a fence that begins with an edit is not the file
)


@some
@given(st.lists(fenced))
def test_fenced_files_are_read_completely_or_refused(files: list[WholeFile]):
    edits = read_or_refuse("\nand\n".join(map(render_fenced, files)))

    # Refused where a file has edits or fences in it.
    assert edits == tuple(files) or isinstance(edits, str)


@settings(some, max_examples=200)
@given(
    st.lists(
        marks
        | st.sampled_from(["diff --git a/x b/x", "--- a/x", "+++ b/x", "--- ", "@@ -1,2 +3 @@"])
        | st.sampled_from(["@@", "-x", "+y", "\\ No newline", "a.py", "# `b.md`", "~~~~", "````"])
        | st.sampled_from(['+++ "b/\\303"', "rename from x", "new file mode 1", "+++ /dev/null"])
        | line
    ).map("\n".join)
)
def test_any_answer_is_read_or_refused(answer: str):
    assert read_or_refuse(answer)


CODE = "".join(f"def f{n}(value):\n    return value + {n}\n\n\n" for n in range(50))


def test_a_diff_with_wrong_numbers_is_applied_by_its_lines(tmp_path: Path):
    (tmp_path / "a.py").write_text(CODE)
    hunk = " def f7(value):\n-    return value + 7\n+    return value + 70\n"
    for header in ("@@ -900,9 +12,1 @@", "@@ def f7", "@@", "@@ ... @@"):
        answer = f"--- a/a.py\n+++ b/a.py\n{header}\n{hunk}\n\nDone.\n"
        (tmp_path / "a.py").write_text(CODE)

        after = apply_to(tmp_path, answer)["a.py"]

        assert after == CODE.replace("value + 7\n", "value + 70\n")


def test_missing_lines_of_a_hunk_are_refused_with_the_nearest_lines(tmp_path: Path):
    (tmp_path / "a.py").write_text(CODE)
    answer = "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,1 @@\n def f32(value, more):\n-    return value\n"

    with pytest.raises(EditError) as raised:
        apply_to(tmp_path, answer)

    assert "the context and `-` lines of a hunk are not in a.py" in raised.value.reasons[0]
    assert "def f32(value):\n    return value + 32" in raised.value.reasons[0]
    assert (tmp_path / "a.py").read_text() == CODE


def test_a_hunk_that_fits_twice_is_refused_unless_its_line_number_decides(tmp_path: Path):
    (tmp_path / "a.txt").write_text("a\nb\na\n")

    with pytest.raises(EditError, match=r"more than once \(from lines 1, 3\)"):
        apply_to(tmp_path, "--- a.txt\n+++ a.txt\n@@ -2 +2 @@\n-a\n+x\n")
    assert apply_to(tmp_path, "--- a.txt\n+++ a.txt\n@@ -3 +3 @@\n-a\n+x\n") == {
        "a.txt": "a\nb\nx\n"
    }


def test_a_diff_can_create_and_remove_files(tmp_path: Path):
    (tmp_path / "old.txt").write_text("old\n")
    answer = (
        "```diff\n--- /dev/null\n+++ b/new/x.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n"
        "--- a/old.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-old\n```\n"
    )

    assert apply_to(tmp_path, answer) == {"new/x.txt": "one\ntwo\n", "old.txt": None}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "renames x to y"),
        ("diff --git a/x b/x\nold mode 100644\nnew mode 100755\n", "has 'new mode'"),
        ("diff --git a/x b/x\nindex 1..2\nBinary files a/x and b/x differ\n", "Binary files"),
        ("--- a/x.py\n+++ b/x.py\nno hunk\n", "has no hunk"),
        ("a.py\n```console\n$ pytest\n```\n", "marked as 'console'"),
        ("`a.md`\n```\n# A\n```\ncode\n```\nend\n```\n", "its end is not clear"),
        ("a.py\n```\nx = 1\n```python\ny\n```\n", "its end is not clear"),
        ("**a.py**\n```python\nx = 1\n", "has no end"),
    ],
)
def test_an_unclear_diff_or_fenced_file_is_refused(answer: str, reason: str):
    with pytest.raises(EditError, match=reason):
        parse_answer(answer)


@pytest.mark.parametrize(
    "above",
    [
        *("src/a.py", "`src/a.py`", "**src/a.py**", "### src/a.py", "File: src/a.py", "src/a.py:"),
        *("**`src/a.py`:**", "#### File: `src/a.py`\n", "Now:\n\n`src/a.py` (new file)"),
    ],
)
def test_a_fenced_block_below_a_path_is_the_complete_file(above: str):
    answer = f"Sure.\n\n{above}\n```python\nx = 1\n```\n\nRun it:\n```bash\npython src/a.py\n```\n"

    assert parse_answer(answer) == (WholeFile("src/a.py", ("x = 1",)),)


def test_fenced_blocks_without_a_file_are_ignored():
    answer = (
        "The files:\n```\nsrc/a.py\nsrc/b.py\n```\nIn `src/a.py`:\n```python\nold\n```\n"
        "`src/__init__.py`\n```\n```\n"
    )

    assert parse_answer(answer) == (WholeFile("src/__init__.py", ()),)


def test_an_edit_that_breaks_the_syntax_is_refused(tmp_path: Path):
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    answer = block("a.py", "    return 1", "    return (1") + render_fenced(
        whole_file("b.txt", "b\n")
    )

    with pytest.raises(EditError) as raised:
        apply_to(tmp_path, answer)

    [reason] = raised.value.reasons
    assert reason.startswith("a.py would have broken syntax in line 2: '(' was never closed.")
    assert ">    2     return (1" in reason
    assert contents(tmp_path) == {"a.py": b"def f():\n    return 1\n"}


@pytest.mark.parametrize("form", ["auto", "whole", "blocks"])
def test_the_edit_format_shown_to_an_llm_can_be_read(form: EditFormat):
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


def test_a_diff_that_deletes_wrong_lines_or_creates_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    deletes = "--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-two\n"
    link = (
        "diff --git a/b b/b\nnew file mode 120000\n--- /dev/null\n+++ b/b\n@@ -0,0 +1 @@\n+/etc\n"
    )
    for diff in (deletes, link):
        with pytest.raises(EditError):
            plan_changes(tmp_path, parse_answer(diff))
    right = deletes.replace("two", "one")
    [change] = plan_changes(tmp_path, parse_answer(right))
    assert change.after is None
