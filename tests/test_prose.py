"""Prose names what exists: each name between backquotes of a docstring or comment is in the code."""

import ast
import functools
import inspect
import io
import re
import tokenize
from collections.abc import Iterator

from tests.test_arrows import PACKAGES, Module, modules, nodes

_NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\(\))?`(?!`)")
FOREIGN = {
    *("availableNow", "foreachBatch", "launch_gateway", "newSession", "sql", "writeStream"),  # of PySpark
    *("dataready", "recvmsg"),  # of the kernel
}
_WORD = re.compile(r"[A-Za-z_]\w*")


@functools.cache
def tokens(source: str) -> list[tuple[int, int, str]]:
    """Kind, line and text."""
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(kind, start[0], text) for kind, text, start, *_ in found]


def prose(module: Module) -> Iterator[tuple[int, str]]:
    """Docstrings, of attributes too, and comments: the line where each begins, and the text."""
    for node in nodes(module.source, module.path):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield node.lineno, inspect.cleandoc(text)
    for kind, line, text in tokens(module.source):
        if kind == tokenize.COMMENT:
            yield line, text


def words(module: Module) -> Iterator[str]:
    """The words of the code: its names, and what stands in its texts, but for docstrings."""
    docstrings = {
        node.value.lineno
        for node in nodes(module.source, module.path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for kind, line, text in tokens(module.source):
        if kind != tokenize.COMMENT and not (kind == tokenize.STRING and line in docstrings):
            yield from _WORD.findall(text)


def missing(named: list[Module], code: list[Module]) -> list[str]:
    known = {word for module in code for word in words(module)}
    return [
        f"{module.path}:{line}: {name}"
        for module in named
        for line, text in prose(module)
        for name in _NAME.findall(text)
        if name.rstrip(".").split(".")[-1] not in known | FOREIGN
    ]


def test_each_name_in_a_docstring_or_comment_exists() -> None:
    source = [*modules(*PACKAGES)]
    assert missing(source, source) == []


def test_a_name_that_is_nowhere_is_found() -> None:
    code = Module("a.py", 'def kept() -> None:\n    """Beside `gone`, `kept` and `dict`."""\n    dict()\n')
    assert missing([code], [code]) == ["a.py:2: gone"]
