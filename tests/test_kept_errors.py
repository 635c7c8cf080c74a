"""An exception that outlives its raise holds little: each raise of it adds frames to its traceback.

Those frames hold sessions and whole reads, for as long as the exception lives. So no module or class keeps an
exception, and one that an object keeps is raised as `kept.with_traceback(None)`.
"""

import ast
import builtins
from collections.abc import Iterable, Iterator

import pytest

from tests.test_arrows import PACKAGES, Module, modules, nodes

_BUILTINS = {
    name
    for name, value in vars(builtins).items()
    if isinstance(value, type) and issubclass(value, BaseException)
}
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def last_name(node: ast.AST | None) -> str:
    """`c` of `a.b.c`; "" for what is no name."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def makers(all_modules: Iterable[Module]) -> set[str]:
    """Names of exception classes, and of the functions that say that they return one."""
    found = set(_BUILTINS)
    every = [node for module in all_modules for node in nodes(module.source, module.path)]
    classes = [node for node in every if isinstance(node, ast.ClassDef)]
    before = 0
    while before < len(found):
        before = len(found)
        found |= {each.name for each in classes if any(last_name(base) in found for base in each.bases)}
    defined = [node for node in every if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return found | {
        each.name
        for each in defined
        if each.returns is not None and last_name(each.returns) in found and not each.name.startswith("__")
    }


def makes_one(value: ast.AST | None, made_by: set[str]) -> bool:
    """Whether an expression is an exception, or a collection with one in it."""
    if isinstance(value, ast.Call):
        inner = [*value.args, *(keyword.value for keyword in value.keywords)]
        name = last_name(value.func)
        if name in made_by:
            return True
        return name in {"field", "dict", "list", "tuple", "MappingProxyType"} and any(
            makes_one(each, made_by) for each in inner
        )
    if isinstance(value, ast.Dict):
        return any(makes_one(each, made_by) for each in value.values)
    if isinstance(value, ast.DictComp):
        return makes_one(value.value, made_by)
    if isinstance(value, ast.ListComp | ast.SetComp | ast.GeneratorExp):
        return makes_one(value.elt, made_by)
    if isinstance(value, ast.Tuple | ast.List | ast.Set):
        return any(makes_one(each, made_by) for each in value.elts)
    if isinstance(value, ast.IfExp):
        return makes_one(value.body, made_by) or makes_one(value.orelse, made_by)
    return False


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """What runs once, when the module is imported: all but the insides of functions."""
    for each in body:
        yield each
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(
                child for child in ast.iter_child_nodes(each) if isinstance(child, ast.stmt)
            )


def long_lived(module: Module, made_by: set[str]) -> Iterator[str]:
    """Exceptions that live as long as the module: its names, its classes', defaults, cached results."""
    tree = nodes(module.source, module.path)
    assert isinstance(tree[0], ast.Module)
    for each in statements(tree[0].body):
        if isinstance(each, ast.Assign | ast.AnnAssign) and makes_one(each.value, made_by):
            yield f"{module.path}:{each.lineno}: {ast.unparse(each)[:60]}"
    for node in tree:
        if isinstance(node, Function):
            defaults = [*node.args.defaults, *node.args.kw_defaults]
            if any(makes_one(each, made_by) for each in defaults):
                yield f"{module.path}:{node.lineno}: a default"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in made_by:
            decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
            if any(last_name(each) in {"cache", "lru_cache", "cached_property"} for each in decorators):
                yield f"{module.path}:{node.lineno}: {node.name} keeps what it returns"


def raised_again(module: Module) -> Iterator[str]:
    """Raises of an exception that an object keeps: `raise self._lost`, or of a name given to it before."""
    tree = nodes(module.source, module.path)
    imported = {
        alias.asname or alias.name.partition(".")[0]
        for node in tree
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for function in tree:
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        inside = list(ast.walk(function))
        stored = {ast.unparse(node) for node in inside if _is_stored_attribute(node)}
        kept = {
            name: ast.unparse(value)
            for node in inside
            if isinstance(node, ast.Assign)
            for name, value in _pairs(node)
            if isinstance(value, ast.Attribute)
        }
        handled = {node.name for node in inside if isinstance(node, ast.ExceptHandler)}
        for node in inside:
            if not isinstance(node, ast.Raise) or node.exc is None:
                continue
            root = node.exc
            while isinstance(root, ast.Attribute | ast.Subscript):
                root = root.value
            name = root.id if isinstance(root, ast.Name) else ""
            is_kept = (
                name not in imported | handled
                if isinstance(node.exc, ast.Attribute)
                else kept.get(name, "") not in stored
            )
            if is_kept and (isinstance(node.exc, ast.Attribute) or name in kept):
                yield f"{module.path}:{node.lineno}: {ast.unparse(node)}"


def _is_stored_attribute(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def _pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Names and what each is given, also in `a, self.b = self.b, None`."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for name, value in zip(target.elts, node.value.elts, strict=False):
                yield last_name(name), value
        elif isinstance(target, ast.Name):
            yield target.id, node.value


ALL = tuple(modules(*PACKAGES))
MADE_BY = makers(ALL)


def test_no_exception_lives_as_long_as_its_module() -> None:
    found = [each for module in ALL for each in long_lived(module, MADE_BY)]
    assert found == [], "make it where it is raised: each raise adds to the traceback of one that stays"


def test_an_exception_that_an_object_keeps_is_raised_without_its_old_traceback() -> None:
    found = [each for module in ALL for each in raised_again(module)]
    assert found == [], "raise it as kept.with_traceback(None)"


@pytest.mark.parametrize(
    "source",
    [
        "NOT_HELD = malformed('no')",
        "class A:\n    full: Refusal = Refusal(1)",
        "BY_CODE = {1: ValueError('one')}",
        "if True:\n    E = KeyError()",
        "def f(error=OSError()):\n    pass",
        "@functools.cache\ndef malformed(text) -> Refusal:\n    return Refusal(text)",
    ],
)
def test_an_exception_that_stays_is_found(source: str) -> None:
    assert len(list(long_lived(Module("a/b.py", source), MADE_BY))) == 1


def test_what_is_made_of_an_exception_may_stay() -> None:
    assert list(long_lived(Module("a/b.py", "LAST = malformed('late').frame(0)"), MADE_BY)) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("def f(self):\n    raise self._lost", 1),
        ("def f(self):\n    raise self._lost from None", 1),
        ("def f(self):\n    lost = self._lost\n    raise lost", 1),
        ("def f(self):\n    lost, self._lost = self._lost, None\n    raise lost", 0),
        ("def f(self):\n    raise self._lost.with_traceback(None)", 0),
        ("import trio\ndef f():\n    raise trio.WouldBlock", 0),
        ("def f():\n    try:\n        pass\n    except OSError as e:\n        raise e.__cause__", 0),
    ],
)
def test_an_exception_raised_again_is_found(source: str, count: int) -> None:
    assert len(list(raised_again(Module("a/c.py", source)))) == count
