"""Prose that is read once: no docstring, no comment and no document has a sentence of more than 25 words."""

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.test_arrows import PACKAGES, ROOT, Module, modules, nodes

WORDS_MAX = 25

_ABBREVIATION = re.compile(r"\b(e\.g|i\.e|etc|vs|cf)\.")
_SENTENCE_ENDS = re.compile(r"(?<=[.!?;])[\"')]*\s+|(?<=:)\s*$")
_BREAKS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*|>]|\d+\.\s|`[^`]*`:|```))|:\n(?=\s*\n)")
"""What ends a sentence besides its full stop: an empty line, and the next of a list."""
_CODE_LINE = re.compile(r"^    .*$", re.MULTILINE)
_CODE = re.compile(r"``[^`]*``|`[^`]*`")
_NO_PROSE = re.compile(r"^```.*?^ *```$|^#.*?$", re.MULTILINE | re.DOTALL)
"""What of a document is no prose: code, and headings."""


def prose(module: Module) -> Iterator[tuple[int, str]]:
    """Docstrings, of attributes too, and comments: the line where each begins, and the text."""
    for node in nodes(module.source, module.path):
        match node:
            case ast.Expr(ast.Constant(str(text))):
                yield node.lineno, inspect.cleandoc(text)
    begun, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(module.source).readline):
        if token.type == tokenize.COMMENT:
            alone = token.line.lstrip().startswith("#")
            if lines and not (alone and token.start[0] == last + 1):
                yield begun, "\n".join(lines)
                lines = []
            begun = begun if lines else token.start[0]
            last = token.start[0] if alone else -1
            lines.append(token.string.lstrip("# "))
    if lines:
        yield begun, "\n".join(lines)


def sentences(text: str) -> Iterator[str]:
    for paragraph in _BREAKS.split(_CODE_LINE.sub("", text)):
        yield from _SENTENCE_ENDS.split(_ABBREVIATION.sub(r"\1", " ".join(paragraph.split())))


def words(sentence: str) -> int:
    """Code between backquotes is one word."""
    return len(re.findall(r"[\w'\-/.<>=%]*\w[\w'\-/.<>=%]*", _CODE.sub("X", sentence)))


def long_sentences(module: Module) -> list[str]:
    return [
        f"{module.path}:{line}: {count} words: {sentence}"
        for line, text in prose(module)
        for sentence in sentences(text)
        if (count := words(sentence)) > WORDS_MAX
    ]


def documents() -> Iterator[Module]:
    for path in sorted(
        [*ROOT.glob("*.md"), *(path for each in PACKAGES for path in (ROOT / each).rglob("*.md"))]
    ):
        yield Module(str(path.relative_to(ROOT)), path.read_text())


def long_in_document(document: Module) -> list[str]:
    """Each cell of a table is for itself."""
    text = _NO_PROSE.sub("", document.source)
    cells = [
        cell
        for paragraph in re.split(r"\n\s*\n", text)
        for cell in (re.split(r"[|\n]", paragraph) if paragraph.lstrip().startswith("|") else [paragraph])
    ]
    return [
        f"{document.path}: {count} words: {sentence}"
        for cell in cells
        for sentence in sentences(cell)
        if (count := words(sentence)) > WORDS_MAX
    ]


def test_no_sentence_of_a_document_is_too_long() -> None:
    assert [found for document in documents() for found in long_in_document(document)] == []


def test_no_sentence_is_too_long_to_be_understood_at_the_first_reading() -> None:
    assert [found for module in modules(*PACKAGES) for found in long_sentences(module)] == []


LONG = "word " * WORDS_MAX + "word."


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (f'"""{LONG}"""', 1),
        (f'"""Short. {LONG} {LONG}"""', 2),
        (f'def f():\n    """Short.\n\n    {LONG}\n    """', 1),
        (f'class A:\n    a: int\n    """{LONG}"""', 1),
        (f"# {LONG}\n", 1),
        ("# " + "word " * 13 + "\n# " + "word " * 13, 1),
        (f'"""{LONG[5:]} {LONG[5:]}"""', 0),
        (f'"""`{LONG}`"""', 0),
        ('"""Two parts:\n\n- ' + "word " * 13 + "\n- " + "word " * 13 + '"""', 0),
        ('"""So:\n\n    ' + LONG + '\n\nAnd.\n"""', 0),
        (f'text = "{LONG}"', 0),
    ],
)
def test_a_long_sentence_is_found(source: str, found: int) -> None:
    assert len(long_sentences(Module("dms/a.py", source))) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{LONG}\n", 1),
        (f"# {LONG}\n", 0),
        (f"```\n{LONG}\n```\n", 0),
        (f"```\ncode\n```\n{LONG}\n\n```\ncode\n```\n", 1),
        ("| " + "word " * 13 + "| " + "word " * 13 + "|", 0),
        (f"| word | {LONG} |", 1),
    ],
)
def test_a_long_sentence_of_a_document_is_found(text: str, found: int) -> None:
    assert len(long_in_document(Module("a.md", text))) == found
