"""Which edits are refused for their syntax, and which files are not judged."""

from __future__ import annotations

import pytest

from bae.team.syntax import find_syntax_error

BROKEN = {
    "a.py": ("x = 1\ny = (\n", 2),
    "deep/a.pyi": ("def f(:\n", 1),
    "a.json": ('{\n  "a": 1,\n}\n', 3),
    "pyproject.toml": ("[a]\nb = \n", 2),
    "a.js": ("const a = 1;\nfunction f( {\n", 2),
    "a.jsx": ("const a = <p>{x</p>;\n", 1),
    "a.mjs": ("export const = 1;\n", 1),
    "a.ts": ("let a: number = 1;\ninterface {\n", 2),
    "a.tsx": ("const a = (p: P) => <p>{p.x</p>;\n", 1),
}
SOUND = {
    "a.py": "async def f():\n    return [x async for x in y]\n",
    "a.json": '{"a": [1, null]}\n',
    "a.toml": "a = 1\n",
    "a.js": "export const f = async (a) => a?.b ?? <p>{a}</p>;\n",
    "a.ts": "export type A<T> = { [K in keyof T]: T[K] };\nconst a = 1 satisfies number;\n",
    "a.tsx": "const a = <T,>(p: T) => <p>{String(p)}</p>;\n",
}


@pytest.mark.parametrize("path", BROKEN)
def test_a_new_file_with_broken_syntax_is_refused_with_its_line(path: str):
    text, line = BROKEN[path]

    error = find_syntax_error(path, None, text.encode())

    assert error is not None
    assert error.startswith(f"{path} would have broken syntax in line {line}: ")
    assert f">{line:>5} {text.splitlines()[line - 1]}" in error


@pytest.mark.parametrize("path", SOUND)
def test_an_edit_that_breaks_a_valid_file_is_refused_and_others_are_accepted(
    path: str,
):
    sound = SOUND[path].encode()

    assert find_syntax_error(path, None, sound) is None
    assert find_syntax_error(path, b"\xef\xbb\xbf" + sound, sound.replace(b"\n", b"\r\n")) is None
    assert find_syntax_error(path, sound, sound + b"\n(((") is not None


@pytest.mark.parametrize("path", BROKEN)
def test_a_broken_file_can_be_edited(path: str):
    text = BROKEN[path][0].encode()

    assert find_syntax_error(path, text, text + b"\n") is None


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tsconfig.json", '{"a": 1,}'),
        ("packages/api/tsconfig.build.json", "{ /* why */ }"),
        (".vscode/settings.json", "{'a': 1}"),
        ("any.json", '// why\n{"a": 1,}'),
        ("a.py", "def f[T](x: T) -> T:\n    return x\n"),
        ("a.py", "type Names = list[str]\n"),
        ("a.js", "// @flow\nconst f = (a: string): string => a;\n"),
        ("a.css", "}"),
        ("latin.py", "# \xe9"),
    ],
)
def test_a_file_that_another_program_may_read_is_not_refused(path: str, text: str):
    encoding = "latin-1" if path == "latin.py" else "utf-8"

    assert find_syntax_error(path, None, text.encode(encoding)) is None


@pytest.mark.parametrize(
    ("path", "judged"),
    [
        ("tests/data/a.json", False),
        ("tests/unit/broken_config.toml", False),
        ("test/bad.js", False),
        ("fixtures/a.py", False),
        ("pkg/testdata/a.py", False),
        ("tests/test_broken.py", True),
        ("tests/data/test_a.py", True),
        ("src/broken.py", True),
        ("src/data/a.json", True),
        ("tests/badges.py", True),
    ],
)
def test_test_data_with_intentional_errors_can_be_written(path: str, judged: bool):
    assert (find_syntax_error(path, None, b"{((") is not None) == judged


def test_removed_files_and_deeply_nested_data_are_not_judged():
    assert find_syntax_error("a.py", b"x", None) is None
    assert find_syntax_error("a.json", None, b"[" * 100_000 + b"]" * 100_000) is None
