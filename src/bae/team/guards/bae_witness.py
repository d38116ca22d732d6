"""A plugin for pytest: it vouches for the report of a run, so that code under test, which shares
the process, cannot simply write another one and exit. It reads a key, which it removes before any
code of the project is loaded, and signs what it saw with it. On the path by itself, so it imports
nothing of bae, and it runs on every Python that pytest does."""

from __future__ import annotations

import json
import os
import sys
from hashlib import sha256
from hmac import new as sign
from types import FunctionType
from typing import Any, Dict, List, Optional, Tuple  # noqa: UP035

import pytest

_GUARDED = ("_pytest.", "pluggy.", "unittest.case")
_INSTALLED = ("site-packages", "dist-packages")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: Any) -> None:
    """Begin to watch, after installed plugins are loaded and before code of the project is."""
    report = early_config.known_args_namespace.xmlpath
    key = os.path.join(os.path.dirname(report or ""), "key")
    if os.path.exists(key):  # the processes of pytest-xdist come later, and write no report
        early_config.pluginmanager.register(_Witness(report, key), "bae witness")


class _Witness:
    def __init__(self, report: str, key: str) -> None:
        with open(key, "rb") as file:
            self._key = file.read()
        os.unlink(key)
        self._report = report
        self._before = _functions()
        self._plugins: List[Any] = []  # noqa: UP006
        self._ran = 0
        self._failed = 0

    def pytest_collection_finish(self, session: Any) -> None:
        self._plugins = session.config.pluginmanager.get_plugins()

    def pytest_collectreport(self, report: Any) -> None:
        self._failed += bool(report.failed)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self._failed += bool(report.failed)

    def pytest_runtest_logfinish(self) -> None:
        self._ran += 1

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: Any, exitstatus: int) -> None:
        """After the report is written."""
        with open(self._report, "rb") as file:
            digest = sha256(file.read()).hexdigest()
        told: Dict[str, Any] = {  # noqa: UP006
            "report": digest,
            "exit_code": int(exitstatus),
            "failed": self._failed,
            "not_run": max(0, session.testscollected - self._ran),
            "replaced": _replaced(self._before) + self._added(session.config.pluginmanager),
        }
        text = json.dumps(told)
        signature = sign(self._key, text.encode(), "sha256").hexdigest()
        with open(self._report + ".signed", "w") as file:
            file.write(signature + "\n" + text)

    def _added(self, manager: Any) -> List[str]:  # noqa: UP006
        """The plugins that tests, or what they test, have added while they ran."""
        new = [
            each for each in manager.get_plugins() if self._plugins and each not in self._plugins
        ]
        return ["plugins (%s)" % type(each).__name__ for each in new if not _is_installed(each)]  # noqa: UP031


_Found = Dict[Tuple[Any, str], Tuple[Any, Any]]  # noqa: UP006


def _functions() -> _Found:
    """The functions of the test program, by where they are."""
    found: _Found = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith(_GUARDED):
            continue
        classes = [each for each in vars(module).values() if isinstance(each, type)]
        own = [each for each in classes if str(each.__module__).startswith(_GUARDED)]
        for holder in [module, *own]:
            for key, value in list(vars(holder).items()):
                function = _function(value)
                if function is not None:
                    found[holder, key] = function, function.__code__
    return found


def _replaced(before: _Found) -> List[str]:  # noqa: UP006
    """The names of those that were replaced by code that is not installed."""
    names: List[str] = []  # noqa: UP006
    for (holder, key), (function, code) in before.items():
        now = _function(holder.__dict__.get(key))
        if now is not None and now is function and now.__code__ is code:
            continue
        if now is None or not _is_installed(now):
            names.append("%s.%s" % (getattr(holder, "__name__", "?"), key))  # noqa: UP031
    return names[:10]


def _is_installed(value: Any) -> bool:
    module = sys.modules.get(getattr(value, "__module__", "") or "", value)
    code = getattr(value, "__code__", None)
    file = code.co_filename if code is not None else getattr(module, "__file__", "") or ""
    return any(folder in file for folder in _INSTALLED)


def _function(value: Any) -> Optional[FunctionType]:  # noqa: UP045
    value = getattr(value, "__func__", value)  # of a class method or a static one
    return value if isinstance(value, FunctionType) else None
