"""The `openforge` command.

Invariant: a mistake of the user is one line on standard error and exit code 2; a run that was stopped says how to go on and exits with 130.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from openforge.types import UserError

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help="Agent-native reinforcement learning.")
models = typer.Typer(no_args_is_help=True, help="Get models.")
app.add_typer(models, name="models")
agents = typer.Typer(no_args_is_help=True, help="Ready-made agents: get them, and see how well they are recorded.")
app.add_typer(agents, name="agents")

RunFile = Annotated[Path, typer.Argument(help="The run file (YAML).", show_default=False)]
Directory = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
Overrides = Annotated[list[str], typer.Option("--set", metavar="A.B=C", help="Override a value of the run file; may be repeated.")]


@app.command()
def train(run_file: RunFile, overrides: Overrides = []) -> None:  # noqa: B006 (typer reads it)
    """Train the model inside an agent, as the run file says."""
    from openforge.run.config import load_config, save_resolved
    from openforge.run.rundir import RunDir

    config = load_config(run_file, overrides)
    run_dir = RunDir.create(config.run_dir)
    save_resolved(config, run_dir.config)
    _train(run_dir.path)


@app.command()
def resume(directory: Directory, overrides: Overrides = []) -> None:  # noqa: B006
    """Go on with a run after a stop or a crash."""
    _train(directory, overrides)


def _train(directory: Path, overrides: list[str] | None = None) -> None:
    from openforge.run.config import check_resumable, load_config, save_resolved
    from openforge.run.rundir import RunDir
    from openforge.run.train import train

    run_dir = RunDir.open(directory)
    config = load_config(run_dir.config, overrides or [])
    if overrides:
        check_resumable(load_config(run_dir.config), config)
        save_resolved(config, run_dir.config)
    try:
        finished = train(config, run_dir)
    except KeyboardInterrupt:
        finished = False
    if not finished:
        typer.echo(f"Stopped; everything recorded is kept. Go on with: openforge resume {run_dir.path}")
        raise typer.Exit(130)
    typer.echo(f"Done. Report: {run_dir.report}")


@app.command()
def sft(
    run_file: RunFile,
    overrides: Overrides = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option(help="Where the model folder goes; default: the run directory with -sft.")] = None,
) -> None:
    """Fine-tune on the transcripts of the run file's `sft` section, and write a model folder."""
    from openforge.run.config import load_config
    from openforge.run.train import cold_start

    config = load_config(run_file, overrides)
    typer.echo(f"Model: {cold_start(config, out or config.run_dir.with_name(config.run_dir.name + '-sft'))}")


@app.command("eval")
def evaluate(run_file: RunFile, overrides: Overrides = []) -> None:  # noqa: B006
    """Run the held-out tasks of a run file with its model, and print the accuracy."""
    from openforge.run.config import load_config
    from openforge.run.train import evaluation

    for row in evaluation(load_config(run_file, overrides)):
        typer.echo(f"{row['set']}: {row['accuracy']} over {row['scored']} of {row['tasks']} tasks")


@app.command()
def report(directory: Directory) -> None:
    """Write a run's report: curves, tables and a few rollouts, call by call."""
    from openforge.run.report import write_report

    typer.echo(write_report(directory))


@app.command()
def replay(
    directory: Directory,
    out: Annotated[Path, typer.Option(help="A new folder for the replay's metrics, model and picture.", show_default=False)],
    overrides: Overrides = [],  # noqa: B006
    against: Annotated[Path | None, typer.Option(metavar="DIR", help="Another replay to compare with; default: the run.")] = None,
) -> None:
    """Train a run's recorded groups again with other settings, and say how far apart the two come out."""
    from rich.console import Console

    from openforge.run.config import load_config
    from openforge.run.replay import replay
    from openforge.run.rundir import RunDir

    run = RunDir.open(directory)
    replay(run, load_config(run.config, overrides), RunDir(out.absolute()), RunDir((against or directory).absolute()), Console())


@app.command()
def serve(
    directory: Annotated[Path, typer.Option("--dir", help="Where the calls are recorded; may be that of an earlier `serve`.")],
    model: Annotated[Path | None, typer.Option(help="The model's folder (or hub id). Without --engine it is run here.")] = None,
    format: Annotated[str | None, typer.Option(help="How the model writes tool calls; default: what its chat template shows.")] = None,
    engine: Annotated[str | None, typer.Option(metavar="URL", help="A vLLM server that serves the model.")] = None,
    upstream: Annotated[str | None, typer.Option(metavar="URL", help="An OpenAI- or Anthropic-compatible API instead of a model.")] = None,
    upstream_dialect: Annotated[str, typer.Option(metavar="chat|messages", help="What that API speaks.")] = "chat",
    upstream_model: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name there.")] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
) -> None:
    """Serve the gateway alone: agents call a model, every call is recorded."""
    from openforge.run.serve import make_settings, serve

    settings = make_settings(
        model=model,
        format=format,
        engine=engine,
        upstream=upstream,
        upstream_dialect=upstream_dialect,
        upstream_model=upstream_model,
        host=host,
        port=port,
    )
    serve(settings, directory)


@app.command()
def calls(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or of `openforge serve`.", show_default=False)],
    call: Annotated[str | None, typer.Argument(help="A call's id, or how it begins: show that call in full.", show_default=False)] = None,
    rollout: Annotated[str | None, typer.Option(help="Only calls of the rollouts whose id begins so.")] = None,
    finish: Annotated[str | None, typer.Option(help="Only calls that ended so: stop, length, aborted, error.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only calls of this kind of lineage: main, sub_agent, side, …")] = None,
    dialect: Annotated[str | None, typer.Option(help="Only calls in this dialect.")] = None,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each call.")] = False,
    sft: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the finished rollouts as transcripts to fine-tune on.")] = None,
) -> None:
    """Look at recorded calls; a run may be writing them still."""
    from rich.console import Console

    from openforge.run.calls import Filter, find_call, recorded, show_call, show_list, write_transcripts

    console = Console()
    with recorded(directory) as store:
        if sft is not None:
            typer.echo(f"{write_transcripts(store, sft)} transcripts: {sft}")
        elif call is not None:
            show_call(store, directory, find_call(store, call), console, as_json=json)
        else:
            show_list(store, Filter(rollout=rollout, finish=finish, kind=kind, dialect=dialect), console, as_json=json)


@app.command()
def doctor() -> None:
    """Say what this machine can do."""
    from openforge.run.doctor import diagnose, print_findings

    print_findings(diagnose())


@app.command()
def formats(
    model: Annotated[str | None, typer.Argument(help="A model's folder or hub id; default: every format that needs no model.")] = None,
    format: Annotated[str | None, typer.Option(help="Another format than the one that the model's chat template shows.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Say which edits of the history keep a prompt's token prefix, and which fork."""
    import msgspec

    from openforge.run.formats import general_report, model_report, print_reports

    if format is not None and model is None:
        raise UserError("formats: --format needs a MODEL")
    reports, missing = (model_report(model, format), []) if model is not None else general_report()
    if json:
        typer.echo(msgspec.json.encode(reports).decode())
    else:
        print_reports(reports, missing)


@models.command()
def fetch(name: str, into: Annotated[Path, typer.Option(help="The folder that model folders go into.")] = Path("models")) -> None:
    """Get a model without a hub, as an ordinary Hugging Face folder."""
    from openforge.run.models import fetch

    typer.echo(fetch(name, into))


AgentsFolder = Annotated[Path | None, typer.Option("--into", envvar="OPENFORGE_AGENTS", help="The agents' folder; default: in your cache.")]


@agents.command("list")
def list_agents(into: AgentsFolder = None) -> None:
    """Say which agents there are adapters for, and which are installed."""
    from rich.console import Console
    from rich.table import Table

    from openforge.agents import ADAPTERS, Installation, agents_folder

    folder = into or agents_folder()
    table = Table("agent", "version", "from", "dialect", "installed", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, adapter in ADAPTERS.items():
        there = Installation(adapter, folder).complete
        table.add_row(name, adapter.version, adapter.registry, adapter.dialect, "[green]yes[/]" if there else "no")
    Console().print(table)


@agents.command()
def install(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="As `openforge agents list` names them.")] = None,
    all_agents: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    into: AgentsFolder = None,
) -> None:
    """Install agents from npm and PyPI at the versions their adapters were tested with, each into a folder of its own."""
    from openforge.agents import ADAPTERS, Installation, agents_folder

    if unknown := [name for name in names or () if name not in ADAPTERS]:
        raise UserError(f"agents: no adapter '{unknown[0]}'; there are: {', '.join(ADAPTERS)}")
    if not names and not all_agents:
        raise UserError("agents: name the agents to install, or give --all")
    for name in names or ADAPTERS:
        installation = Installation(ADAPTERS[name], into or agents_folder())
        if not installation.complete:
            typer.echo(f"installing {name} {ADAPTERS[name].version}")
            installation.install()
        typer.echo(installation.folder)


@agents.command("report")
def report_agents(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories, or folders of them.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Say how runs' agents were recorded: lineages, forks, prefix reuse, and the share of sampled tokens that is trained."""
    from openforge.run.agents_report import agent_rows, as_json, print_agent_rows

    rows = agent_rows(directories)
    if json:
        typer.echo(msgspec.json.encode(as_json(rows)).decode())
    else:
        print_agent_rows(rows)


@app.command()
def bench(
    name: Annotated[str, typer.Argument(help="Which benchmark: engine, gateway, tree, tree-precision or window.")],
    model: Annotated[Path | None, typer.Option(help="Model folder; default: the benchmark's own choice.", show_default=False)] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the result: a .png or .svg file.")] = None,
) -> None:
    """Measure, side by side with what others do, and hold the result to its bar."""
    from openforge.bench import BENCHES, show

    if name not in BENCHES:
        raise UserError(f"bench: no benchmark '{name}'; there are: {', '.join(BENCHES)}")
    chosen = BENCHES[name]
    if plot is not None:
        if chosen.plot is None:
            raise UserError(f"bench {name}: has no picture to draw: leave --plot away")
        if plot.suffix not in (".png", ".svg"):
            raise UserError(f"bench {name}: --plot {plot}: name a file that ends in .png or .svg")
        plot.parent.mkdir(parents=True, exist_ok=True)
    result = chosen.run(model or chosen.model, repeats)
    if plot is not None and chosen.plot is not None:
        chosen.plot(result, plot)
    show(result, as_json=json)
    if not all(bar.ok for bar in result.bars):
        raise typer.Exit(1)


def main() -> None:
    # Idle threads of one pool must not spin while another works: sampling and training share the cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        app()
    except UserError as error:
        typer.secho(f"openforge: {error}", err=True, fg="red")
        sys.exit(2)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        typer.secho(f"openforge: {error.filename or 'the disk'}: {error.strerror}: free space, then `openforge resume`", err=True, fg="red")
        sys.exit(2)
    except KeyboardInterrupt:
        typer.secho("openforge: interrupted", err=True)
        sys.exit(130)
