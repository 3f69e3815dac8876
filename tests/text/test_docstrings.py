"""What is kept of a documentation string and what is left out."""

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


def test_a_source_file_that_does_not_parse_is_refused():
    with pytest.raises(SyntaxError):
        docstrings.read(b'"""The old statement is not a function yet in this file."""\nprint "x"')


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
