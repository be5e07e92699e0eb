"""The position scanner sees the same keys as tomllib, each on its line."""

from __future__ import annotations

import tomllib

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo.config.positions import KeyPath, key_lines, split_key

EXAMPLE = '''\
# a comment with [brackets] = "and quotes
title = "a # no comment" # a comment
"quoted key" = 1
'single.quoted' . sub = 2
text = """
[not.a.table]
fake = 1
still \\""" text """"" # two quotes belong to the text
literal = \'\'\'
also = 'not a key' \\
\'\'\'
numbers = [ # comment ] in an array
  1, 2, # another
  [3, 4],
]

[a.b]
c.d.e = 1
c.f = { g = 1, h = [ { i = 1 }, { i = 2 } ] }
when = 1979-05-27T07:32:00Z

[[a.list]]
x = 1
[a.list.inner]
y = 2

[[a.list]]
x = 3
  [[ a . list . deep ]]
z = 4

[a]
after = true
'''


def test_every_kind_of_key_has_its_line() -> None:
    assert key_lines(EXAMPLE) == {
        ("title",): 2,
        ("quoted key",): 3,
        ("single.quoted",): 4,
        ("single.quoted", "sub"): 4,
        ("text",): 5,
        ("literal",): 9,
        ("numbers",): 12,
        ("numbers", 0): 13,
        ("numbers", 1): 13,
        ("numbers", 2): 14,
        ("numbers", 2, 0): 14,
        ("numbers", 2, 1): 14,
        ("a",): 17,
        ("a", "b"): 17,
        ("a", "b", "c"): 18,
        ("a", "b", "c", "d"): 18,
        ("a", "b", "c", "d", "e"): 18,
        ("a", "b", "c", "f"): 19,
        ("a", "b", "c", "f", "g"): 19,
        ("a", "b", "c", "f", "h"): 19,
        ("a", "b", "c", "f", "h", 0): 19,
        ("a", "b", "c", "f", "h", 0, "i"): 19,
        ("a", "b", "c", "f", "h", 1): 19,
        ("a", "b", "c", "f", "h", 1, "i"): 19,
        ("a", "b", "when"): 20,
        ("a", "list"): 22,
        ("a", "list", 0): 22,
        ("a", "list", 0, "x"): 23,
        ("a", "list", 0, "inner"): 24,
        ("a", "list", 0, "inner", "y"): 25,
        ("a", "list", 1): 27,
        ("a", "list", 1, "x"): 28,
        ("a", "list", 1, "deep"): 29,
        ("a", "list", 1, "deep", 0): 29,
        ("a", "list", 1, "deep", 0, "z"): 30,
        ("a", "after"): 33,
    }
    assert set(key_lines(EXAMPLE)) == paths(tomllib.loads(EXAMPLE))


def test_windows_line_ends_give_the_same_lines() -> None:
    assert key_lines(EXAMPLE.replace("\n", "\r\n")) == key_lines(EXAMPLE)


@pytest.mark.parametrize("text", ["", "\n", "# only a comment", "a=1", "[t]", "a = ''", 'a = ""', "a=[]\nb={}"])
def test_small_texts_are_read(text: str) -> None:
    assert set(key_lines(text)) == paths(tomllib.loads(text))


@pytest.mark.parametrize(
    "quotes", ['""""a"""', '"""a""""', '"""a"""""', '"""\\""""', "''''a'''", "'''a''''", "'''a'''''", '"\\\\"', '"\\""']
)
def test_quotes_at_the_edge_of_a_string_belong_to_it(quotes: str) -> None:
    text = f"a = {quotes}\nb = 1\n"
    assert set(key_lines(text)) == paths(tomllib.loads(text)) == {("a",), ("b",)}


def test_a_dotted_key_is_split_where_it_ends() -> None:
    assert split_key('a . "b\\t.c".d = 1') == (("a", "b\t.c", "d"), 14)
    with pytest.raises(ValueError, match="no key at offset 2"):
        split_key("a.=1")


names = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["a", "b", "a.b", "x-y_z", "1", '"', "'", "#", "=", "[", "]]"]
)
texts = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["#", "\n[a]\nb=1\n", '"""', "'''", "\\", '\\"', "]", "}", ",", "\t"]
)
scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.datetimes() | st.dates() | texts
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=12
)
documents = st.dictionaries(names, values, max_size=4)


@given(documents, st.booleans())
@settings(max_examples=300, deadline=None)
def test_written_documents_have_the_keys_that_tomllib_reads(document: dict, multiline: bool) -> None:
    text = tomli_w.dumps(document, multiline_strings=multiline)
    assert set(key_lines(text)) == paths(tomllib.loads(text))


# Hand-written style, which tomli_w never produces: comments, dotted keys, odd spacing, arrays over several lines.
keys = st.sampled_from(["a", "b.c", '"q k"', "'l.k'", "d . e", "f-1"])
simple = st.sampled_from(
    [
        *(
            "1",
            "-1.5e3",
            "true",
            "nan",
            '"#"',
            "'''\n[x]\ny=1\n'''",
            '"""\n"a"\\\n  b = 2"""',
            "[]",
            "[ # c ]\n1,\n[2,], ]",
        ),
        *("{ i = 1, j.k = [{ l = 2 }] }", "{}", "1979-05-27 07:32:00", '"\\u00e9\\\\"'),
    ]
)
lines = st.one_of(
    st.builds("{}{} = {}{}".format, st.sampled_from(["", "  ", "\t"]), keys, simple, st.sampled_from(["", " # x = 1"])),
    st.builds("[{}]{}".format, keys, st.sampled_from(["", " # [y]"])),
    st.builds("[[ {} ]]".format, keys),
    st.sampled_from(["", "# z = 1", "   "]),
)


@given(st.lists(lines, max_size=12))
@settings(max_examples=500, deadline=None)
def test_hand_written_documents_have_the_keys_that_tomllib_reads(drawn: list[str]) -> None:
    text = ""
    for line in drawn:  # keep only lines that leave the text valid
        candidate = f"{text}{line}\n"
        try:
            tomllib.loads(candidate)
        except tomllib.TOMLDecodeError:
            continue
        text = candidate
    found = key_lines(text)
    assert set(found) == paths(tomllib.loads(text))
    # The last part of a key stands on the line that is reported for it.
    rows = text.split("\n")
    for path, line in found.items():
        if isinstance(path[-1], str):
            assert path[-1] in rows[line - 1]


def paths(value: object, path: KeyPath = ()) -> set[KeyPath]:
    """Return the path of every key and array element of what tomllib read."""
    found = {path} - {()}
    if isinstance(value, dict):
        for name, inner in value.items():
            found |= paths(inner, (*path, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found |= paths(inner, (*path, index))
    return found
