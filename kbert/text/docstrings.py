"""The prose in a Python source file's documentation strings: paragraphs of English, without code, tables and markup."""

import ast
import importlib.util
import inspect
import re
import warnings
from collections.abc import Iterator

# Comments and strings: a quote within one of them begins no other. No part can match in two ways, and a string without
# an end goes to that of its line or of the file, so that what is not Python takes no longer. Each begins with its sign
# as it is, not with "{3}, so that re runs to the next sign in less than half the time.
QUOTED = re.compile(
    r"""\#[^\n]*
    | \"\"\" [^"\\]* (?: (?: \\. | "(?!"") ) [^"\\]* )* (?: \"{3} | \\?\Z )
    | \'\'\' [^'\\]* (?: (?: \\. | '(?!'') ) [^'\\]* )* (?: '{3} | \\?\Z )
    | " [^"\\\n]* (?: \\. [^"\\\n]* )* (?: " | (?=\n) | \\?\Z )
    | ' [^'\\\n]* (?: \\. [^'\\\n]* )* (?: ' | (?=\n) | \\?\Z )""",
    re.VERBOSE | re.DOTALL,
)
PREFIXES = {"", "r", "R", "u", "U"}  # of a string of text
# A bracket in the next line closes an expression that the string is part of.
END_OF_STATEMENT = re.compile(r"[ \t]*(?:\#[^\n]*)?(?:;|\Z|\n(?!\s*[)\]}.]))")
UNDERLINE = re.compile(r"\s*([-=~^\"'*+#])\1{2,}\s*")
# "name: what it is", "name (type): what it is", "* what", "1. what": the description is prose, what is before it not.
ENTRY = re.compile(r"(?:[-*•] +|\d+[.)] +)?(?:[`*]*[\w.]+[`*]*(?: \([^)]*\))?: +(?=\S))?")
# What is always in it, as most text has none of it; the pattern; what it becomes.
MARKUP = [
    ("`", re.compile(r":[a-z:]+:`[~!]?([^`<]+?)(?:\s*<[^`]*>)?`"), r"\1"),  # :class:`~m.Name`, :ref:`text <target>`
    ("`_", re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{1,2}"), r"\1"),  # `text <address>`_
    ("](", re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),  # [text](address)
    ("]_", re.compile(r"\s*\[\w+\]_"), ""),  # a citation [1]_
    ("`", re.compile(r"`+"), ""),
    ("**", re.compile(r"\*\*"), ""),
    ("::", re.compile(r"\s*::$"), ":"),
    ("", re.compile(r"[\s\x00-\x1f\x7f]+"), " "),  # control characters stand in the documentation of what reads them
]
FUNCTION_WORDS = set(
    "a an and any are as at be but by can each for from has have if in into is it its may no not of on one or only same"
    " should so than that the their then there these this to used use was when where which will with you".split()
)
MIN_WORDS = 6
MIN_LETTERS = 0.8  # of a paragraph's characters are letters and spaces


def read(source: bytes) -> list[str]:
    """The paragraphs of a source file's documentation strings, in the order of the file.

    Raises ValueError, SyntaxError or LookupError if the source is no text, or a documentation string none of Python's.
    """
    if b'"""' not in source and b"'''" not in source:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in other people's code
        docstrings = list(_docstrings(importlib.util.decode_source(source)))
    return [paragraph for docstring in docstrings for paragraph in paragraphs(docstring)]


def paragraphs(docstring: str) -> list[str]:
    """The paragraphs of one documentation string that read as prose, each on one line."""
    lines = _without_code(inspect.cleandoc(docstring).splitlines())
    texts = (_without_markup(" ".join(block)) for block in _blocks(lines))
    return [text for text in texts if _is_prose(text)]


def _docstrings(text: str) -> Iterator[str]:
    """The strings that have their lines to themselves where the file or a block begins.

    That takes a fourth of the time that a parser does. A block of any kind counts; one that goes on in the line of its
    `def` does not.
    """
    code, end = "", 0  # since the last string, without comments
    for quoted in QUOTED.finditer(text):
        code += text[end : quoted.start()]
        end = quoted.end()
        if quoted[0].startswith("#"):
            continue
        above, _, prefix = code.rpartition("\n")
        if prefix.strip() in PREFIXES and above.rstrip()[-1:] in ("", ":") and END_OF_STATEMENT.match(text, end):
            yield ast.literal_eval(prefix.strip() + quoted[0])
        code = "'"


def _without_code(lines: list[str]) -> Iterator[str]:
    """The lines outside fences, doctests, directives, literal blocks and headings; "" where something was left out."""
    fenced, in_doctest, literal = False, False, None
    for line, following in zip(lines, [*lines, ""][1:], strict=True):
        text, indent = line.strip(), len(line) - len(line.lstrip())
        if text.startswith(("```", "~~~")):
            fenced = not fenced
        in_doctest = bool(text) and (in_doctest or text.startswith(">>>"))
        if text and literal is not None and indent <= literal:
            literal = None
        hidden = fenced or in_doctest or literal is not None or text.startswith((".. ", "```", "~~~", "@"))
        if literal is None and (text.startswith(".. ") or text.endswith("::")):
            literal = indent
        is_heading = UNDERLINE.fullmatch(line) or (UNDERLINE.fullmatch(following) and text)
        yield "" if hidden or is_heading else line


def _blocks(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines that belong together: of one indentation, or a list entry and its deeper continuation."""
    block, indent, is_entry = [], 0, False
    for line in lines:
        text, depth = line.strip(), len(line) - len(line.lstrip())
        mark = ENTRY.match(text).end()
        if block and (not text or mark or depth < indent or (depth > indent and not is_entry)):
            yield block
            block = []
        if text:
            if not block:
                indent, is_entry = depth, bool(mark)
            block.append(text[mark:] if not block else text)
    if block:
        yield block


def _without_markup(text: str) -> str:
    for sign, pattern, replacement in MARKUP:
        if sign in text:
            text = pattern.sub(replacement, text)
    return text.strip()


def _is_prose(text: str) -> bool:
    words = text.split()
    letters = sum(map(str.isalpha, text)) + text.count(" ")
    return (
        len(words) >= MIN_WORDS
        and (text[0].isalpha() or text[0] in "\"'(")
        and letters >= MIN_LETTERS * len(text)
        and sum(word.lower() in FUNCTION_WORDS for word in words) >= 2
    )
