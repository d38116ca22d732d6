"""The reading tools: what an LLM sees of a repository, and that nothing in it is unbounded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import pytest

from bae import Graph, Node, ToolCall, ToolError, Tools
from bae.team.git import Repository
from bae.team.reading import CodeTree, find, get_tree, look, outline
from bae.team.repository import CodeReader
from bae.testing import Call, ScriptedLM
from git_repositories import make_repository, write

pytest.importorskip("tree_sitter_python")

CART = "class Cart:\n    def total(self):\n        return sum(self.prices)\n"
FILES = {
    "shop/cart.py": CART,
    "shop/payment.py": "from shop.cart import Cart\n\n\ndef charge(cart):\n    cart.total()\n",
    "shop/long.py": "".join(f"x{n} = {n}\n" for n in range(1, 501)),
    "tests/test_cart.py": "def test_total():\n    assert Cart().total() == 0\n",
    "docs/cart.md": "The total of a cart is the sum of its prices.\n" + "total\n" * 60,
    "CHANGELOG.md": "total\n" * 100,
}


async def open_tree(root: Path, files: dict[str, str] = FILES) -> CodeTree:
    return CodeTree(CodeReader(await Repository.open(make_repository(root, files))))


async def test_an_llm_can_call_the_tools_look_find_and_outline(tmp_path: Path):
    class Ask(Node):
        async def __call__(self) -> Reply: ...

    class Reply(Node):
        calls: Annotated[list[ToolCall], Tools(look, find, outline)]
        text: str

        async def __call__(self) -> None: ...

    lm = ScriptedLM(
        [
            [Call("find", pattern="def total"), Call("outline", path="shop/cart.py")],
            [Call("look", path="shop/cart.py", lines="2"), Call("look", path="cart.py")],
            {"text": "done"},
        ]
    )
    tree = await open_tree(tmp_path / "project")

    run = await Graph(start=Ask, end=Reply).arun(Ask(), lm, dep_cache={get_tree: tree})

    results = [call.result for call in run.result.calls]
    assert results[0].splitlines()[0] == "shop/cart.py:2: def total(self):"
    assert results[1].splitlines()[1:] == ["  1-3 class Cart", "    2-3 def total(self)"]
    assert "   2|    def total(self):\n   3|        return sum(self.prices)" in results[2]
    assert "nearest are: shop/cart.py" in str(run.result.calls[3].error)


async def test_a_look_shows_at_most_200_lines_and_how_to_see_more(tmp_path: Path):
    tree = await open_tree(tmp_path / "project")

    text = await look("shop/long.py", tree=tree)

    assert text.startswith("shop/long.py: lines 1 to 200 of 500; ")
    assert 'look("shop/long.py", "201-400") shows what follows' in text
    assert len(text.splitlines()) == 201
    last = await look("./shop/long.py", "450-900", tree=tree)
    assert last.startswith("shop/long.py: lines 450 to 500 of 500\n 450|x450 = 450\n")
    assert (await look("shop/long.py", "3-3", tree=tree)).endswith("\n   3|x3 = 3")
    assert (await look("shop/", tree=tree)).startswith("shop/cart.py: Cart\n")
    for lines, why in (("600", "has 500 lines"), ("all", "not a range")):
        with pytest.raises(ToolError, match=why):
            await look("shop/long.py", lines, tree=tree)


async def test_a_look_at_long_lines_is_bounded(tmp_path: Path):
    tree = await open_tree(tmp_path / "project", {"a.py": f"x = '{'y' * 900}'\n" * 150})

    assert len(await look("a.py", tree=tree)) < 19_000


async def test_definitions_come_first_and_no_file_uses_up_all_hits(tmp_path: Path):
    tree = await open_tree(tmp_path / "project")

    lines = (await find("total", tree=tree)).splitlines()

    paths = [line.partition(":")[0] for line in lines[:-1]]
    order = ["shop/cart.py", "shop/payment.py", "tests/test_cart.py", "docs/cart.md"]
    assert list(dict.fromkeys(paths)) == [*order, "CHANGELOG.md"]
    assert max(paths.count(path) for path in paths) == 5
    assert lines[-1].startswith("… and more: 56 in docs/cart.md, 95 in CHANGELOG.md.")
    assert len((await find("total", "CHANGELOG.md", tree=tree)).splitlines()) == 41


async def test_a_glob_is_a_name_a_path_or_a_folder(tmp_path: Path):
    tree = await open_tree(tmp_path / "project")

    for glob in ("*.md", "docs/", "docs", "docs/**/*.md", "docs/cart.md", "d*/*"):
        text = await find("The total", glob, tree=tree)
        assert text == "docs/cart.md:1: The total of a cart is the sum of its prices."
    with pytest.raises(ToolError, match=r"no file fits '\*\.rb'"):
        await find("total", "*.rb", tree=tree)


async def test_capitals_in_a_pattern_make_case_matter(tmp_path: Path):
    tree = await open_tree(tmp_path / "project", {"a.py": "Cart\ncart\n"})

    assert await find("cart", tree=tree) == "a.py:1: Cart\na.py:2: cart"
    assert await find(r"Cart\S*", tree=tree) == "a.py:1: Cart"
    assert await find(r"\Scart|cart\S*", tree=tree) == "a.py:1: Cart\na.py:2: cart"


async def test_a_search_for_words_of_a_task_finds_files_without_a_matching_line(tmp_path: Path):
    tree = await open_tree(tmp_path / "project")

    text = await find("what the charge of a payment needs", tree=tree)

    head, first = text.splitlines()[:2]
    assert head.startswith("No line has these words in this order.")
    assert first.startswith("shop/payment.py:4: def charge(cart)")
    with pytest.raises(ToolError, match="no line matches 'zebra crossing'"):
        await find("zebra crossing", tree=tree)


async def test_a_pattern_without_an_end_for_the_name_of_a_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bae.team.reading.SEARCH_SECONDS", 0.5)
    tree = await open_tree(tmp_path / "project", {f"{'a' * 60}.py": "x = 1\n"})
    with pytest.raises(ToolError, match=r"took over 0\.5 s"):
        await find("^(a+)+$", tree=tree)


async def test_bad_patterns_and_patterns_without_an_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("bae.team.reading.SEARCH_SECONDS", 0.5)
    tree = await open_tree(tmp_path / "project", {"a.py": f"x = '{'a' * 60}!'\n"})

    with pytest.raises(ToolError, match="not a regular expression"):
        await find("def total(", tree=tree)
    with pytest.raises(ToolError, match=r"took over 0\.5 s"):
        await find("(a+)+$", tree=tree)
    with pytest.raises(ToolError, match="1 to 300 characters"):
        await find("a" * 301, tree=tree)
    with pytest.raises(ToolError, match="not a regular expression"):
        await find("a{99999999999999}", tree=tree)
    assert await find("x = .a+", tree=tree)


async def test_secrets_links_and_ignored_files_are_never_shown(tmp_path: Path):
    root = make_repository(tmp_path / "project", {**FILES, ".gitignore": "build/\n"})
    (tmp_path / "outside.py").write_text("total = 1")
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    write(root, {".env": "total=1", "build/out.py": "total = 1"})
    tree = CodeTree(CodeReader(await Repository.open(root)))

    for path in ("link.py", ".env", "build/out.py", "../outside.py", str(tmp_path / "outside.py")):
        with pytest.raises(ToolError, match="there is no file"):
            await look(path, tree=tree)
    assert "link.py" not in await find("total", tree=tree)
    assert ".env" not in await outline(tree=tree)


async def test_only_changed_files_of_a_tree_are_read_again(tmp_path: Path):
    root = make_repository(tmp_path / "project", FILES)
    for name in FILES:
        os.utime(root / name, ns=(1, 1))
    tree = CodeTree(CodeReader(await Repository.open(root)))
    before = await tree.read()

    write(root, {"shop/cart.py": CART.replace("sum", "max")})
    (root / "shop/payment.py").unlink()
    after = await tree.read()

    assert "max(self.prices)" in after.texts["shop/cart.py"]
    assert after.texts["shop/long.py"] == before.texts["shop/long.py"]
    assert "shop/payment.py" not in after.names
    assert "max" in await look("shop/cart.py", tree=tree)
