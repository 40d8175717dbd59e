"""`openforge formats`: which edits of the history keep the token prefix, for a model's format or for all that need no model.

Invariant: it prints what `gateway.formats.report` found, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from openforge.gateway.formats import FORMATS, load_format
from openforge.gateway.formats.chatml import END, START
from openforge.gateway.formats.deepseek_v31 import TOKENS as DEEPSEEK_TOKENS
from openforge.gateway.formats.report import Finding, prefix_report
from openforge.run.models import load_tokenizer, resolve_model
from openforge.types import UserError

Reports = dict[str, list[Finding]]


def model_report(model: str, format: str | None) -> Reports:
    """Of one model: a folder or a hub id. `format` overrides the choice by its chat template."""
    tokenizer = load_tokenizer(resolve_model(model, Path()))
    chosen = load_format(format, tokenizer)
    return {chosen.name: prefix_report(chosen, tokenizer)}


def general_report() -> tuple[Reports, list[str]]:
    """Of every format that is the same for all its models, and the names of those that only a model's own chat template makes whole."""
    tokenizer, reports, missing = _byte_tokenizer((START, END, *DEEPSEEK_TOKENS)), Reports(), []
    for name in FORMATS:
        try:
            format = load_format(name, tokenizer)
        except UserError:
            missing.append(name)
        else:
            reports[name] = prefix_report(format, tokenizer)
    return reports, missing


def print_reports(reports: Reports, missing: Iterable[str], console: Console | None = None) -> None:
    console = console or Console()
    for name, findings in reports.items():
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", title=name, title_justify="left")
        for heading in ("edit of the history", "rendered anew", "spliced", "recorded as"):
            table.add_column(heading)
        for finding in findings:
            kept = [_kept(count, finding.ids) for count in (finding.template, finding.spliced)]
            table.add_row(finding.edit, *kept, finding.fork or "continuation")
        console.print(table)
    if missing:
        console.print(f"Give a MODEL to see: {', '.join(missing)}. Their prompts are those of the model's own chat template.", style="dim")


def _kept(count: int, ids: int) -> Text:
    return Text("keeps all", "green") if count == ids else Text(f"{count} of {ids} ids", "yellow")


def _byte_tokenizer(special_tokens: Iterable[str]) -> Any:
    """A tokenizer of bytes: what an edit keeps does not depend on how text between special tokens is cut."""
    from transformers import PreTrainedTokenizerFast  # seconds of imports

    core = Tokenizer(models.BPE(vocab={char: id for id, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core)
    tokenizer.add_special_tokens({"additional_special_tokens": list(dict.fromkeys(special_tokens))})
    return tokenizer
