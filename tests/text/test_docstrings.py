"""What is kept of a documentation string and what is left out."""

import time

import pytest

from kbert.text import docstrings

SOURCE = b'''
"""The module says what it is for in a whole sentence."""

def outer(tensor):
    """Returns the sum of the values in the tensor.

    The sum is taken over the axis that was given, or
    over all of them if there was none::

        outer(tensor, that is not prose and is not kept)

    Args:
      tensor: A tensor of the values
        that are to be added up.
      axis: int.
    """
    class Inner:
        """An inner class is documented after the function that it is in."""

try:
    if True:
        async def guarded():
            """A function that is defined in a branch counts as well."""
    else:
        class Other:
            """A class that is defined in the other branch does too."""
except ImportError:
    def failed():
        """A function that is defined in a handler is not forgotten."""
finally:
    def ended():
        """A function that is defined at the end of it is the last."""
'''


def test_a_source_file_gives_its_paragraphs_in_order():
    assert docstrings.read(SOURCE) == [
        "The module says what it is for in a whole sentence.",
        "Returns the sum of the values in the tensor.",
        "The sum is taken over the axis that was given, or over all of them if there was none:",
        "A tensor of the values that are to be added up.",
        "An inner class is documented after the function that it is in.",
        "A function that is defined in a branch counts as well.",
        "A class that is defined in the other branch does too.",
        "A function that is defined in a handler is not forgotten.",
        "A function that is defined at the end of it is the last.",
    ]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (b'# coding: klingon\n"""It is in an encoding that there is not."""', SyntaxError),
        (b'# coding: rot13\n"""It is in an encoding that is none of text."""', LookupError),
        (b'"""It is in the encoding."""\n\n# \xff is not.', ValueError),
        (b'"""It is a string with a \\N{name} that is none of a character."""', SyntaxError),
        (b'"""It is a string that has no end.', SyntaxError),
    ],
    ids=["unknown encoding", "not of text", "wrong bytes", "wrong escape", "no end"],
)
def test_a_source_file_that_is_no_text_of_python_is_refused(source, error):
    with pytest.raises(error):
        docstrings.read(source)


PROSE = "It is a string that reads as prose."


@pytest.mark.parametrize(
    "source",
    [
        f'def f():\n    r"""{PROSE}"""',
        f"def f():  # it's a comment\n    # and one: \"\"\"\n\n    u'''{PROSE}'''  # and another",
        f'#! python\n\n"{PROSE}"; x = """"""',
        "class C: \n\t'It is a string that \\\nreads as\\x20prose.'\n\n'''a\n:\n'''",
        'def f():\r\n    """\r\n    It is a string\r\n    that reads as prose.\r\n    """\r\n',
        f'def f(x="""\n:"""):\n    """{PROSE}"""',
    ],
    ids=["raw", "comments", "one quote", "escapes", "carriage returns", "after a string"],
)
def test_a_string_that_stands_alone_where_a_block_begins_is_read(source):
    assert docstrings.read(f"{source}\n''''''".encode()) == [PROSE]


@pytest.mark.parametrize(
    "source",
    [
        f'x = """{PROSE}"""',
        f'def f():\n    x = 1\n    """{PROSE}"""',
        f'def f():\n    """{PROSE}""" + x',
        f'def f():\n    b"""{PROSE}"""',
        f'def f():\n    f"""{PROSE}"""',
        f'x = {{"a":\n    """{PROSE}""",\n}}',
        f'x = {{"a":\n    """{PROSE}"""  # the last\n}}',
        f'f(lambda:\n    """{PROSE}"""\n    .strip())',
        f'def f(): """{PROSE}"""',
        f'x = ":"\n"""{PROSE}"""',
        f'x = """\\""":\n\'{PROSE}\'\n"""',
        f"''''''\nx = \"\"\"{PROSE}\"\"\"",
    ],
    ids="value late term bytes formatted in-a-dict last-in-a-dict lambda one-line after-a-string within empty".split(),
)
def test_another_string_is_not(source):
    assert docstrings.read(source.encode()) == []


def test_what_is_not_python_takes_no_longer():
    begin = time.perf_counter()
    for source in (
        b'"" \\x ' * 40_000,
        b'"""a"""\n' + b'\\"""\n' * 40_000,
        b"''''''\n" + b'\\"' * 40_000 + b"\n" + b"\\'" * 40_000,
    ):
        assert docstrings.read(b'x = """"""' + source) == []
    assert time.perf_counter() - begin < 5


KEPT = "This is the text that is kept in each of the cases."


@pytest.mark.parametrize(
    "left_out",
    [
        "```python\nx = the value that is in a fence\n\ny = and the one that is after it\n```",
        ">>> add(1, 2)  # the sum of it and the other\nthis is the answer of the call\n",
        ".. versionadded:: 3 in which this was added to the module",
        ".. math::\n\n    the sum of it and of the other one is not prose",
        "The Heading That Is Over A Section\n-----------------------------------",
        "x : array_like of the given shape (n, m), (n,), (1,), (k, 3), (2, 2, 2)",
        "+--------+ a b c d e f g",
        "| it is a row that has the names of all the columns in it",
        "a short one of five",
        "Copyright Holder Name Address City Country Year",
    ],
    ids=[
        "fence",
        "doctest",
        "directive",
        "directive's block",
        "heading",
        "signature",
        "table",
        "row",
        "short",
        "names",
    ],
)
def test_what_is_not_prose_is_left_out(left_out):
    assert docstrings.paragraphs(f"{KEPT}\n\n{left_out}\n\n{KEPT}") == [KEPT, KEPT]


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("It is the class :class:`~module.Name` that is used.", "It is the class module.Name that is used."),
        ("It is the same as :func:`this one <module.name>` is.", "It is the same as this one is."),
        ("It is in `the paper <https://example.org>`_ of the year.", "It is in the paper of the year."),
        ("It is in [the paper](https://example.org) of the year.", "It is in the paper of the year."),
        ("It is ``code`` and it is **bold** in the text [1]_.", "It is code and it is bold in the text."),
        ("* It is an item of a list that is kept.", "It is an item of a list that is kept."),
        ("`name` (int): It is the number of all the names.", "It is the number of all the names."),
    ],
)
def test_markup_goes_and_its_text_stays(marked, plain):
    assert docstrings.paragraphs(marked) == [plain]


def test_a_doctest_right_under_a_text_is_cut_off():
    under = "It is an example of the call that is made here:\n>>> add(1, 2)  # the sum of it and of the other one\n3"
    assert docstrings.paragraphs(under) == ["It is an example of the call that is made here:"]


def test_items_of_a_list_are_paragraphs_of_their_own():
    listed = "* It is the first item of the list.\n  It goes on for a line.\n* It is the second item of the list."
    assert docstrings.paragraphs(listed) == [
        "It is the first item of the list. It goes on for a line.",
        "It is the second item of the list.",
    ]


def test_control_characters_become_spaces():
    text = "The header begins with a byte \x00 and ends with \x1b, which are no text at all."
    assert docstrings.paragraphs(text) == ["The header begins with a byte and ends with , which are no text at all."]
