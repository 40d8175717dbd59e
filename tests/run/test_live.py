"""The live view: everything it promises is on the screen, and a log gets one line a step."""

from __future__ import annotations

import io

from rich.console import Console

from openforge.run.live import LiveView, duration, number, sparkline

ROW = {
    "kind": "step", "step": 12, "reward_mean": 0.4375, "outcomes": {"finished": 30, "timeout": 2},
    "sampled_tokens": 1800, "trained_share": 0.9,
    "staleness_mean": 0.6, "staleness_max": 2, "entropy": 0.31, "logprob_gap": 3.1e-6, "sample_tokens_per_second": 412.0,
    "train_tokens_per_second": 1234.5, "step_seconds": 7.2, "elapsed": 95.0,
}  # fmt: skip
EVAL = {"kind": "eval", "step": 0, "set": "a", "accuracy": 0.3125, "tasks": 128, "label": "before rl"}


def screen(*, terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=120, height=30, color_system=None)
    with LiveView(total_steps=40, title="shop", console=console) as view:
        view.phase("evaluating before rl")
        view.update(EVAL)
        view.update({**ROW, "step": 11, "reward_mean": 0.2})
        view.update(ROW, {"running": (3, 4), "finished": (2,), "policy": "windowed"})
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_shows_everything_at_a_glance() -> None:
    last = screen(terminal=True)
    for words in (
        "shop", "step 12/40", "0.438", "▁█", "0.31", "3.1e-06", "0.6 mean, 2 max", "412 tokens/s", "1,234 tokens/s", "90.0%",
        "2 groups run, 1 wait for the trainer", "finished 60", "timeout 4", "31.2% (before rl)", "1:35 elapsed", "left",
    ):  # fmt: skip
        assert words in last, words


def test_a_log_gets_one_plain_line_a_step() -> None:
    lines = screen(terminal=False).splitlines()
    assert lines[:2] == ["evaluating before rl", "held-out a (before rl): 31.2% of 128 tasks"]
    assert len(lines) == 4
    assert lines[3].startswith(
        "step 12/40 | reward 0.438 | entropy 0.31 | trained 90.0% of 1,800 tokens | gap 3.1e-06 | stale 0.6 | 412 tok/s | fin"
    )
    assert "\x1b" not in "".join(lines)


def test_what_is_not_known_yet_is_a_dash() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with LiveView(total_steps=40, title="shop", console=console) as view:
        view.update({"kind": "step", "step": 1, "reward_mean": None, "outcomes": {}})
        view.update({}, {"running": ()})
        view.update({"kind": "eval", "step": 1, "set": "a", "accuracy": None, "tasks": 3, "label": ""})
    assert isinstance(console.file, io.StringIO)
    assert "–" in console.file.getvalue()


def test_numbers_for_people() -> None:
    assert [number(value) for value in (None, 0, 1234567, 0.00001234, 12345.6, 3.14159)] == [
        "–",
        "0",
        "1,234,567",
        "1.23e-05",
        "12,346",
        "3.14",
    ]
    assert [duration(seconds) for seconds in (0, 59.6, 3599, 3600)] == ["0:00", "1:00", "59:59", "1:00:00"]


def test_the_sparkline_spans_its_own_range_and_width() -> None:
    assert sparkline([]) == ""
    assert sparkline([2, 2]) == "▄▄"
    assert sparkline([0, 0.5, 1]) == "▁▅█"
    assert len(sparkline(list(range(1000)), width=32)) <= 32
