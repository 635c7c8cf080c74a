"""Prose names what exists: each name between backquotes of a docstring or comment is in the code."""

import ast
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


def prose(module: Module) -> Iterator[tuple[int, str]]:
    """Docstrings, of attributes too, and comments: the line where each begins, and the text."""
    for node in nodes(module.source, module.path):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield node.lineno, inspect.cleandoc(text)
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def words(module: Module) -> Iterator[str]:
    """The words of the code: its names, and what stands in its texts, but for docstrings."""
    docstrings = {
        node.value.lineno
        for node in nodes(module.source, module.path)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.start[0] in docstrings):
            continue
        yield from _WORD.findall(token.string)


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
