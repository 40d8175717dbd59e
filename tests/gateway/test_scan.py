from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openforge.gateway.formats.scan import overlap

TEXTS = st.text("<a/>", max_size=12)


@given(TEXTS, st.lists(st.text("<a/>", min_size=1, max_size=6), min_size=1, max_size=3))
def test_overlap_is_the_longest_end_that_could_begin_a_mark(text: str, marks: list[str]) -> None:
    ends = [n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n])]
    assert overlap(text, *marks) == max(ends, default=0)
