"""Node classes from source text: the same program in each way that Python lets an annotation be
spelled, and run in each place that code can run in."""

import ast
import sys
import types
from typing import Any

HEAD = """
from typing import *
from pydantic import BaseModel, Field
from bae import *
from bae.testing import ScriptedLM
"""

SPELLINGS = ["future", "quoted", "plain"] if sys.version_info >= (3, 14) else ["future", "quoted"]
"""With `from __future__ import annotations`, in quotes, and as they are, which lets a name be
defined later from Python 3.14 on."""


def spelled(source: str, spelling: str) -> str:
    """The program `source`, whose annotations are plain, in another spelling, with its imports."""
    match spelling:
        case "future":
            return f"from __future__ import annotations\n{HEAD}\n{source}"
        case "quoted":
            return ast.unparse(_Quoted().visit(ast.parse(HEAD + source)))
        case _:
            return HEAD + source


def run_as_module(source: str, name: str, **names: Any) -> types.ModuleType:
    """Run source text as a module that import knows of; the caller takes it out again."""
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    exec(compile(source, f"<{name}>", "exec", dont_inherit=True), vars(module))
    return module


class _Quoted(ast.NodeTransformer):
    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = _quote(node.annotation)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self.visit_FunctionDef(node)

    def visit_FunctionDef(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        if node.returns is not None:
            node.returns = _quote(node.returns)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        if node.annotation is not None:
            node.annotation = _quote(node.annotation)
        return node


def _quote(annotation: ast.expr) -> ast.expr:
    return ast.Constant(ast.unparse(annotation))
