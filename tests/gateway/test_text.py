"""Detokenising as it is sampled, and stop strings."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from openforge.gateway.text import Detokenizer, StopTrimmer, encode, own_tokenizer

HARD = "naïve ∑ 👩🏽‍🚀 日本語 e\u0301 \U0001f1e9\U0001f1ea\ufffd!"


def pieces(tokenizer, ids):
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(id) for id in ids), detokenizer.finish()]


def test_no_piece_ends_inside_a_character(tokenizer):
    core = own_tokenizer(tokenizer)
    ids = encode(core, HARD)
    got = pieces(core, ids)
    assert "".join(got) == HARD
    assert not any("\ufffd" in piece for piece in got[:-3])


def test_one_byte_tokens_of_an_emoji_come_out_as_one_piece(tiny_tokenizer):
    core = own_tokenizer(tiny_tokenizer)
    ids = encode(core, "👋")
    assert len(ids) == 4
    assert pieces(core, ids) == ["", "", "", "👋", ""]


def test_truncated_character_is_shown_as_replacement_at_the_end(tiny_tokenizer):
    core = own_tokenizer(tiny_tokenizer)
    assert "".join(pieces(core, encode(core, "a👋")[:-1])) == "a\ufffd"


@given(st.lists(st.integers(0, 500), max_size=40))
@settings(max_examples=200, deadline=None)
def test_pieces_add_up_to_the_decoding_of_all_ids(tiny_tokenizer, ids):
    core = own_tokenizer(tiny_tokenizer)
    assert "".join(pieces(core, ids)) == core.decode(ids, skip_special_tokens=False)


def test_endless_garbage_is_let_go_of(tiny_tokenizer):
    core = own_tokenizer(tiny_tokenizer)
    detokenizer = Detokenizer(core)
    bad = encode(core, "👋")[0]
    out = [detokenizer.push(bad) for _ in range(500)]
    assert sum(map(len, out)) > 400


def test_own_tokenizer_ignores_padding_switched_on_elsewhere(tiny_tokenizer):
    tiny_tokenizer(["a", "a b c"], padding=True, truncation=True, max_length=2)
    assert len(encode(own_tokenizer(tiny_tokenizer), "hello hello hello")) > 2


@given(st.text(alphabet="abc", max_size=20), st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=3), st.data())
@settings(deadline=None)
def test_text_ends_before_the_first_stop_string_however_it_is_cut(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    trimmer = StopTrimmer(tuple(stops))
    out = "".join(trimmer.feed(text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)) + trimmer.finish()
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert out == text
    else:
        first = text[: min(ends)]
        assert out == first[: min(first.index(stop) for stop in stops if stop in first)]
