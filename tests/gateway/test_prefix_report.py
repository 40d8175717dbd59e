"""What `openforge formats` says is what happens."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from openforge.cli import app
from openforge.run.formats import general_report, print_reports
from openforge.types import Fork

REPORTS, MISSING = general_report()
KEPT_BY_ALL = (
    "a tool result is appended",
    "a user message is appended to a finished reply",
    "the client loses the reasoning",
    "the client re-orders the keys of arguments",
    "a reminder follows a tool result as a user message",
    "system text is inserted in the middle",
)
FORKED = {"an assistant message is dropped": Fork.EDITED, "the system text changes": Fork.ROOT, "a tool is added": Fork.ROOT}


def row(format: str, edit: str):
    return next(finding for finding in REPORTS[format] if finding.edit == edit)


@pytest.mark.parametrize("format", REPORTS)
def test_splicing_keeps_what_a_client_does_in_good_faith_and_names_every_fork(format):
    assert [finding.edit for finding in REPORTS[format]] == [*KEPT_BY_ALL, *FORKED]
    for edit in KEPT_BY_ALL:
        found = row(format, edit)
        assert (found.spliced, found.fork) == (found.ids, None)
        assert found.template <= found.ids
    for edit, reason in FORKED.items():
        found = row(format, edit)
        assert found.spliced < found.ids
        assert found.fork == reason


def test_template_alone_loses_the_prefix_where_it_drops_reasoning():
    """verl#6719, prime-rl#1334: so no server that renders every request anew can be token-exact, and splicing does not ask the template."""
    whole = {format: [finding.edit for finding in findings if finding.template == finding.ids] for format, findings in REPORTS.items()}
    appended, asked, lost = KEPT_BY_ALL[:3]
    assert appended in whole["deepseek_v32_thinking"]
    assert asked not in whole["deepseek_v32_thinking"]
    assert lost not in whole["deepseek_v32_thinking"]
    assert "a reminder follows a tool result as a user message" not in whole["deepseek_v32_thinking"]
    assert asked in whole["deepseek_v32"]
    assert appended not in whole["deepseek_v31_thinking"]


def test_table_and_json_say_the_same():
    console = Console(file=io.StringIO(), width=140)
    print_reports(REPORTS, MISSING, console)
    table = console.file.getvalue()
    assert "Give a MODEL to see: " in table
    assert "llama3" in table.splitlines()[-1]
    assert table.count("continuation") == len(KEPT_BY_ALL) * len(REPORTS)
    shown = CliRunner().invoke(app, ["formats", "--json"])
    assert msgspec.json.decode(shown.stdout) == msgspec.to_builtins(REPORTS)


def test_format_without_a_model_is_refused():
    assert isinstance(CliRunner().invoke(app, ["formats", "--format", "hermes"]).exception, Exception)
