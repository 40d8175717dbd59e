"""Train a run's recorded groups again, with other settings.

Invariant: nothing is sampled and the recorded run is only read. The same groups make the same steps, under the same weight versions, from
the weights that the run's reinforcement learning began with; so what differs from the run, or from another replay, comes from the settings.

A replay's folder has `replay.yaml` (the resolved settings), and metrics, checkpoint and plots as a run directory has them. It is none:
there is nothing in it to resume.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from openforge.engines.training import TrainEngine
from openforge.pool import Store
from openforge.run.batch import Group, make_batch, read_groups
from openforge.run.compare import common_steps, differences, draw, print_differences, weights_apart
from openforge.run.config import RunConfig, read_config, save_resolved
from openforge.run.live import LiveView
from openforge.run.metrics import MetricsWriter, Row, read_metrics
from openforge.run.models import resolve_model
from openforge.run.rundir import RunDir
from openforge.run.sft import fine_tune
from openforge.types import UserError


def replay(source: RunDir, config: RunConfig, out: RunDir, against: RunDir, console: Console) -> None:
    """Train every step that a checkpoint of `source` contains, with the settings of `config`, into the new folder `out`; then say how far
    it is from `against`, in a table and a picture."""
    if out.path.exists():
        raise UserError(f"{out.path} exists: give another folder with --out, or remove it")
    if not against.metrics.is_file():
        raise UserError(f"{against.path} holds neither a run nor a replay (it has no {against.metrics.name})")
    with Store.open(source.database) as store:
        steps = store.steps()
        if not steps:
            raise UserError(f"{source.path} has no trained step yet: a replay trains what a checkpoint contains")
        versions = {row["step"]: row["version"] for row in read_metrics(source.metrics) if row["kind"] == "step"}
        if lost := sorted(steps.keys() - versions.keys()):
            raise UserError(f"{source.metrics} has no row of step {lost[0]}, whose weight version a replay needs: restore it from a copy")
        out.plots.mkdir(parents=True)
        save_resolved(config, out.path / "replay.yaml")
        with LiveView(total_steps=max(steps), title=f"{config.name}, replayed", console=console) as view, MetricsWriter(out) as metrics:
            start = starting_weights(source, out, against, view)
            engine = TrainEngine(start, config.train, threads=os.cpu_count())
            per_group = read_config(source.config).units_per_group
            for step, units in steps.items():
                engine.version = versions[step]
                row = _train(engine, read_groups(store, units, per_group), config)
                view.update(metrics.write({"step": step, **row}))
        engine.save(out.checkpoint(max(steps)))
    _compare(against, out, start, console)


def starting_weights(source: RunDir, out: RunDir, against: RunDir, view: LiveView) -> Path:
    """The model folder that the run's reinforcement learning began with.

    A cold start whose checkpoint is gone is made again, once: a replay that is compared with another begins with that one's.
    """
    config = read_config(source.config)
    base = resolve_model(config.model.path, config.base_dir)
    if config.sft is None:
        return base
    if kept := [run.checkpoint(0) for run in (source, against) if run.checkpoint(0).is_dir()]:
        return kept[0]

    def report(row: Mapping[str, Any], step: int, steps: int) -> None:
        view.phase(f"fine-tuning {step}/{steps}")

    again = fine_tune(base, config.sft, train=config.train, format_name=config.model.format, seed=config.seed, report=report)
    again.save(out.checkpoint(0))
    return out.checkpoint(0)


def _train(engine: TrainEngine, groups: list[Group], config: RunConfig) -> Row:
    """One optimizer step; its metrics, as a run has them."""
    version = engine.version
    batch = make_batch(groups, config.train, version=version, vocabulary=engine.vocabulary, context_length=engine.context_length)
    trained = {} if batch.tree is None else engine.step([batch.tree], temperature=config.rollout.sampling.temperature)
    return {"version": version, **batch.row, **trained}


def _compare(against: RunDir, out: RunDir, start: Path, console: Console) -> None:
    pairs, names = common_steps(against, out), (against.path.name, out.path.name)
    if not pairs:
        console.print("Nothing was trained in any step, so there is nothing to compare.")
        return
    print_differences(differences(pairs), names, console)
    last = max(one["step"] for one, _ in pairs)
    if against.checkpoint(last).is_dir() and out.checkpoint(last).is_dir():
        largest, share = weights_apart(against.checkpoint(last), out.checkpoint(last), start)
        apart = f"weights after step {last}: {largest:.1e} apart at most; together {share:.2%} of how far training moved them"
        console.print(apart, soft_wrap=True)
    picture = out.plots / "replay.png"
    draw(pairs, names, picture)
    console.print(f"Picture: {picture}", soft_wrap=True)
