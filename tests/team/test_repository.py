"""Reading a repository: the outline, the search and the conventions, all bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bae.team.git import Repository
from bae.team.repository import (
    LARGEST_FILE,
    Code,
    CodeReader,
    CommitReader,
    FileKind,
    outline_file,
    read_code,
)
from git_repositories import make_repository, write

FILES = {
    "shop/cart.py": "class Cart:\n    def add_item(self, item):\n        self.items.append(item)\n",
    "shop/payment.py": "def charge_card(card, amount):\n    return gateway.charge(card, amount)\n",
    "shop/shippingLabel.js": "export function printLabel(order) { return order.address }\n",
    "shop/tax.py": "def vat(amount):\n    return amount * 0.2\n",
    "readme.md": "A shop. It has carts, payments and labels.\n",
    "AGENTS.md": "Write tests first.\n",
    "CONTRIBUTING.md": "Use ruff.\n" + "x" * 50_000,
}


def signatures(name: str, text: str) -> tuple[str, ...]:
    return tuple(
        "  " * definition.depth + definition.signature for definition in outline_file(name, text)
    )


def code(files: dict[str, str] = FILES) -> Code:
    return Code(tuple(sorted(files)), files)


async def test_the_files_of_a_checkout_are_read_without_secrets_links_and_binaries(tmp_path: Path):
    root = make_repository(tmp_path / "project", {**FILES, ".gitignore": "build/\n"})
    write(root, {"new.py": "x = 1\r\n", "build/out.py": "y", ".env": "KEY=1", "config.pem": "k"})
    write(root, {"large.py": "x" * (LARGEST_FILE + 1)})
    (tmp_path / "outside.py").write_text("secret = 1")
    (root / "link.py").symlink_to(tmp_path / "outside.py")
    (root / "picture.png").write_bytes(b"\x89PNG\0")
    (root / "latin.txt").write_bytes(b"\xe9")
    (root / "shop" / "tax.py").unlink()
    os.mkfifo(root / "pipe.py")

    read = await read_code(await Repository.open(root))

    named = {".gitignore", "new.py", "large.py", "picture.png", "latin.txt"}
    assert set(read.names) == (set(FILES) | named) - {"shop/tax.py"}
    assert set(read.texts) == (set(FILES) | {".gitignore", "new.py"}) - {"shop/tax.py"}
    assert read.texts["new.py"] == "x = 1\n"


async def test_a_directory_that_became_a_link_is_not_followed(tmp_path: Path):
    root = make_repository(tmp_path / "project", {"a/b.py": "x = 1\n", "c.py": "y = 1\n"})
    (root / "a").rename(tmp_path / "moved")
    (tmp_path / "moved" / "b.py").write_text("not of the repository")
    (root / "a").symlink_to(tmp_path / "moved")

    assert (await read_code(await Repository.open(root))).names == ("c.py",)


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("Items can be added to a cart", "shop/cart.py"),
        ("charging a credit card", "shop/payment.py"),
        ("print the label of an order", "shop/shippingLabel.js"),
        ("shipping", "shop/shippingLabel.js"),
        ("addItem", "shop/cart.py"),
        ("VAT is wrong for large amounts", "shop/tax.py"),
    ],
)
def test_a_search_finds_the_file_that_a_text_is_about_first(query: str, path: str):
    assert code().search(query)[0].path == path


def test_a_search_returns_the_best_matches_up_to_a_limit():
    matches = code().search("cart payment label amount", most=3)

    assert len(matches) == 3
    assert [match.score for match in matches] == sorted((m.score for m in matches), reverse=True)
    assert code().search("zebra 𝄞") == ()
    assert Code((), {}).search("cart") == ()


def test_python_is_outlined_with_classes_methods_and_signatures():
    pytest.importorskip("tree_sitter_python")
    text = (
        "import x\n\n@dataclass\nclass A(Base):\n    '''Doc.'''\n    a: int = 1\n"
        "    @property\n    def f(\n        self,\n        n: int,\n    ) -> str:\n"
        "        def inner(): ...\n        return ''\n    class B:\n        pass\n"
        "async def run(*, é='x') -> None:\n    # Why.\n    pass\n"
        "if TYPE_CHECKING:\n    def only(): ...\n"
    )

    assert signatures("a.py", text) == (
        "  class A(Base)",
        "    def f( self, n: int, ) -> str",
        "    class B",
        "  async def run(*, é='x') -> None",
        "  def only()",
    )


def test_javascript_and_typescript_are_outlined():
    pytest.importorskip("tree_sitter_typescript")
    text = (
        "export default class A extends B { f(a) { } }\nexport const h = (x) => { return 1 }\n"
        "const n = 1\nasync function k() {}\n"
    )
    typed = "interface I { a: string }\ntype T = string\nexport function g(a: number): T {}\n"

    expected = ("  class A extends B", "    f(a)", "  h = (x)", "  async function k()")
    for name in ("a.js", "a.mjs", "a.jsx", "a.ts", "a.tsx"):
        assert signatures(name, text) == expected
    assert signatures("a.ts", typed) == (
        "  interface I",
        "  type T = string",
        "  function g(a: number): T",
    )


def test_broken_hostile_and_unknown_code_is_outlined_as_far_as_possible():
    pytest.importorskip("tree_sitter_python")
    assert "  def good()" in signatures("a.py", "def bad(:\n\ndef good():\n    pass\n")
    deep = "".join(f"{' ' * n}class A{n}:\n" for n in range(300))
    assert len(signatures("a.py", deep)) <= 20
    assert len(signatures("a.py", "def f(): pass\n" * 5000)) == 200
    assert len(signatures("a.py", f"def f({'x' * 5000}): pass\n")[0]) < 200
    outline_file("a.js", "(" * 20_000)
    assert signatures("a.rb", "def f\nend\n") == ()
    assert signatures("a.py", "") == ()


def test_an_outline_shows_the_named_files_first_and_stays_within_its_bound():
    pytest.importorskip("tree_sitter_python")
    files = {f"m{n:04}.py": f"def function_{n}(value):\n    pass\n" for n in range(2000)}
    many = code(files)

    outline = many.outline(["m1500.py", "no/such.py"], longest=5000)

    assert outline.startswith("m1500.py\n  def function_1500(value)\nm0000.py\n")
    assert len(outline) <= 5000
    assert f"… and {2000 - outline.count('.py')} more files" in outline
    assert code().outline().count("\n") >= len(FILES)
    assert "more files" not in code().outline()


async def test_a_reader_of_changed_files_finds_the_same_as_a_fresh_index(tmp_path: Path):
    files = {f"m{n}.py": f"def word{n}(): pass\n" for n in range(20)}
    root = make_repository(tmp_path / "project", files)
    repository = await Repository.open(root)
    reader = CodeReader(repository)
    await reader.read()
    write(root, {"m3.py": "def word4(): pass\n", "new.py": "def fresh(): word4()\n"})
    (root / "m5.py").unlink()

    code = await reader.read()

    fresh = await read_code(repository)
    assert code == fresh
    for query in ("word3", "word4", "word5", "fresh", "m5.py", "def pass"):
        assert code.search(query) == fresh.search(query)
    assert [match.path for match in code.search("fresh word4")][:2] == ["new.py", "m3.py"]


def test_conventions_are_read_from_the_repository():
    text = code().conventions(longest=2000)

    assert "AGENTS.md:\nWrite tests first." in text
    assert "CONTRIBUTING.md:\nUse ruff." in text
    assert len(text) <= 2100
    assert Code((), {}).conventions() == ""


def test_definitions_have_their_lines_with_decorators():
    pytest.importorskip("tree_sitter_python")
    text = "import x\n\n@cached\nclass A:\n    @property\n    def f(self):\n        return 1\n"

    of_class, of_function = outline_file("a.py", text)

    assert (of_class.name, of_class.line, of_class.first, of_class.last) == ("A", 4, 3, 7)
    assert (of_function.name, of_function.line, of_function.first) == ("f", 6, 5)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("shop/cart.py", "x = 1", FileKind.CODE),
        ("shop/test_runs.py", "def start(): ...", FileKind.CODE),
        ("shop/test_runs.py", "def test_start(): ...", FileKind.TEST),
        ("tests/shops.py", "x = 1", FileKind.TEST),
        ("docs/cart.md", "A cart", FileKind.TEXT),
        ("CHANGELOG.md", "1.0", FileKind.DATA),
        ("uv.lock", "x", FileKind.DATA),
        ("package-lock.json", "{}", FileKind.DATA),
        ("shop/schema.py", "# Generated by tool. Do not edit.", FileKind.DATA),
    ],
)
def test_files_are_distinguished_by_their_purpose(name: str, text: str, kind: FileKind):
    assert code({name: text}).kind(name) is kind


def test_a_folder_is_listed_level_by_level_within_its_bound():
    pytest.importorskip("tree_sitter_python")
    files = {f"shop/m{n:03}.py": f"def f{n}(): ...\n" for n in range(300)}
    files |= {"setup.py": "def build(): ...\n", "docs/a.md": "Text"}

    assert code(files).list_folder(longest=1000).splitlines() == [
        "docs/a.md",
        "setup.py: build",
        "shop/ (300 files)",
    ]
    assert "shop/m007.py: f7\n" in code(files).list_folder("shop", longest=20_000)
    assert len(code(files).list_folder("shop", longest=1000)) < 1100


async def test_a_file_named_like_a_secret_is_read_only_if_it_holds_no_secret(tmp_path: Path):
    pytest.importorskip("tree_sitter_python")
    files = {
        "shop/secrets.py": "def mask(text): ...\n",
        "shop/my_secrets.py": "PASSWORD = 'hunter2'\n",
        "shop/credentials.py": f"def key():\n    return 'sk-{'a' * 30}'\n",
    }
    repository = await Repository.open(make_repository(tmp_path / "project", files))

    assert (await read_code(repository)).names == ("shop/secrets.py",)
    assert (await CommitReader(repository, "HEAD").read()).names == ("shop/secrets.py",)
