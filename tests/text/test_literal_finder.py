import re

from hypothesis import given
from hypothesis import strategies as st

from appliance.text.literal_finder import LiteralFinder

TEXTS = st.text(alphabet="ab<|>", min_size=1, max_size=5)


@given(literals=st.sets(TEXTS, max_size=8), text=st.text(alphabet="ab<|>", max_size=40))
def test_it_cuts_as_a_regular_expression_does(literals: set[str], text: str) -> None:
    longest_first = sorted(literals, key=len, reverse=True)
    pattern = re.compile("(" + ("|".join(map(re.escape, longest_first)) or "(?!)") + ")")
    cut = [part for pair in LiteralFinder(literals).split(text) for part in pair]
    assert cut == [*pattern.split(text), ""]


def test_the_longest_is_found_where_several_begin() -> None:
    finder = LiteralFinder(["<a", "<ab>", "\n" * 31, "\n"])
    assert finder.match("x<ab>", 1) == "<ab>"
    assert finder.search("xx<ac<ab>", 3) == (5, "<ab>")
    assert [literal for _, literal in finder.split("\n" * 33)] == ["\n" * 31, "\n", "\n", ""]
    assert finder.starts == {"<", "\n"}


def test_nothing_to_find_leaves_the_text_whole() -> None:
    assert list(LiteralFinder([]).split("a<b")) == [("a<b", "")]
