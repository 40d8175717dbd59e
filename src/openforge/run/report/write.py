"""Puts the report together and writes it."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import jinja2

from openforge.pool import Store
from openforge.run.config import RunConfig, read_config
from openforge.run.live import duration, number, percent
from openforge.run.metrics import read_metrics
from openforge.run.models import load_tokenizer, resolve_model
from openforge.run.report.plots import draw
from openforge.run.report.rollouts import Decoder, NumberDecoder, RolloutView, select, view
from openforge.run.report.summary import STAGES, Summary, summarise
from openforge.run.report.template import PAGE
from openforge.run.rundir import RunDir
from openforge.types import UserError


def write_report(run_dir: Path) -> Path:
    """Write `report.html` and `plots/*.png` of a run from what it has recorded so far; returns the HTML file's path."""
    run = RunDir.open(run_dir)
    config = read_config(run.config)
    summary = summarise(read_metrics(run.metrics))
    plots = draw(summary, run.plots)
    page = _environment().from_string(PAGE).render(
        config=config,
        config_text=run.config.read_text(encoding="utf-8"),
        summary=summary,
        last=summary.steps[-1] if summary.steps else {},
        stages=STAGES,
        tiles=_tiles(config, summary),
        plots=[(plot, base64.b64encode(plot.path.read_bytes()).decode()) for plot in plots],
        rollouts=_rollouts(run, config),
        written=time.strftime("%Y-%m-%d %H:%M"),
    )  # fmt: skip
    scratch = run.report.with_suffix(".tmp")
    scratch.write_text(page, encoding="utf-8")
    scratch.replace(run.report)
    return run.report


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"number": number, "percent": percent, "duration": duration}
    return environment


def _tiles(config: RunConfig, summary: Summary) -> list[tuple[str, str, str]]:
    """The numbers to see first: (value, label, remark)."""
    tiles = []
    for name in summary.sets:
        known = {label: value for label, value in summary.accuracies(name).items() if value is not None}
        if "after rl" in known:
            before = known.get("before rl")
            remark = "" if before is None else f"{(known['after rl'] - before) * 100:+.1f} points by RL, from {percent(before)}"
            tiles.append((percent(known["after rl"]), f"held-out {name}", remark))
    if summary.steps:
        last = summary.steps[-1]
        sampled, trained = summary.total("sampled_tokens"), summary.total("trained_tokens")
        tiles.append((f"{last['step']} / {config.train.steps}", "optimizer steps", f"{int(summary.total('rollouts')):,} rollouts"))
        tiles.append((percent(trained / sampled if sampled else None), "of sampled tokens trained", f"{int(sampled):,} sampled"))
        if rows := summary.total("row_positions"):
            computed = summary.total("positions")
            tiles.append((f"{rows / computed:.1f}×", "fewer positions by trees", f"{int(computed):,} instead of {int(rows):,}"))
        gaps = [row["logprob_gap"] for row in summary.steps if row.get("logprob_gap") is not None]
        if gaps:
            tiles.append((f"{max(gaps):.1e}", "worst mean |Δ log-probability|", "engine against trainer"))
    seconds = sum(value for _, value in summary.phases)
    if seconds:
        tiles.append((duration(seconds), "wall time", "all phases"))
    return tiles


def _rollouts(run: RunDir, config: RunConfig) -> list[RolloutView]:
    if not run.database.exists():
        return []
    decoder = _decoder(run, config)
    with Store.open(run.database) as store:
        return [view(why, rollout, store, decoder) for why, rollout in select(store.rollouts())]


def _decoder(run: RunDir, config: RunConfig) -> Decoder:
    try:
        folder = run.latest_checkpoint() or resolve_model(config.model.path, config.base_dir)
        decoder: Decoder = load_tokenizer(folder)
    except UserError:
        return NumberDecoder()
    return decoder
