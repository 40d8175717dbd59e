"""`openforge calls`: what was recorded, as a list, call by call, or as transcripts to fine-tune on.

Invariant: it only reads, so it may look at a run that is being written.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from openforge.coordinator import conversation, lineages, offered_tools
from openforge.gateway.dialects.chat_request import write_message, write_tool
from openforge.gateway.reply import usage_of
from openforge.gateway.turn import Message, Tool
from openforge.pool import Store
from openforge.run.models import load_tokenizer
from openforge.run.rundir import RunDir
from openforge.types import Call, FinishReason, LineageKind, Outcome, UserError

_TAUGHT = (LineageKind.MAIN, LineageKind.SUB_AGENT, LineageKind.CONTINUATION)
_WITHHELD = ("content_filter", "refusal")
"""Ends in an upstream's words that nobody wants to teach."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """One line of the list."""

    id: str
    rollout: str
    dialect: str
    kind: str
    fork: str | None
    prompt_tokens: int
    sampled_tokens: int
    finish: str
    started_at: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What to list; None takes all."""

    rollout: str | None = None
    """Its id, or how that begins."""
    finish: str | None = None
    kind: str | None = None
    dialect: str | None = None

    def __post_init__(self) -> None:
        for name, value, known in (("finish", self.finish, FinishReason), ("kind", self.kind, LineageKind)):
            if value is not None and value not in set(known):
                raise UserError(f"--{name} {value}: there are {', '.join(known)}")

    def takes(self, row: CallRow) -> bool:
        wanted = ((self.finish, row.finish), (self.kind, row.kind), (self.dialect, row.dialect))
        return row.rollout.startswith(self.rollout or "") and all(want in (None, value) for want, value in wanted)


@contextmanager
def recorded(directory: Path) -> Iterator[Store]:
    """The call log of a run or of `openforge serve`."""
    path = RunDir(directory.absolute()).database
    if not path.is_file():
        raise UserError(f"{directory} holds no calls (it has no {path.name}): give the directory of a run or of `openforge serve`")
    with Store.open(path) as store:
        yield store


def list_calls(store: Store, wanted: Filter) -> Iterator[CallRow]:
    """Rollout by rollout, each in arrival order."""
    for rollout in store.calling_rollouts():
        if not rollout.startswith(wanted.rollout or ""):
            continue
        calls = store.calls(rollout)
        kinds = {id: lineage.kind for lineage in lineages(calls) for id in lineage.call_ids}
        yield from filter(wanted.takes, (_row(call, kinds[call.id]) for call in calls))


def find_call(store: Store, prefix: str) -> Call:
    found = store.find_calls(prefix)
    if len(found) != 1:
        raise UserError(f"{'several calls begin' if found else 'no call begins'} with {prefix!r}")
    return found[0]


def transcripts(store: Store) -> Iterator[dict[str, Any]]:
    """Chat transcripts, as the `sft` section of a run file reads them: one for each line of work of each finished rollout.

    A line of work ends with its last complete reply. A reply that several lines go through is in each of them.
    """
    for rollout in store.calling_rollouts():
        known = store.rollout(rollout)
        if known is None or known.outcome is not Outcome.FINISHED:
            continue
        calls = {call.id: call for call in store.calls(rollout)}
        for lineage in lineages(list(calls.values())):
            last = next((id for id in reversed(lineage.call_ids) if _complete(calls[id])), None)
            if lineage.kind in _TAUGHT and last is not None:
                yield _transcript(calls, last)


def write_transcripts(store: Store, path: Path) -> int:
    """As JSONL; returns how many there are."""
    lines = [msgspec.json.encode(row) + b"\n" for row in transcripts(store)]
    try:
        path.write_bytes(b"".join(lines))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None
    return len(lines)


def show_list(store: Store, wanted: Filter, console: Console, *, as_json: bool) -> None:
    rows = list_calls(store, wanted)
    if as_json:
        for row in rows:
            _print_json(console, asdict(row))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("call", "rollout", "dialect", "kind", "fork"):
        table.add_column(name, no_wrap=True)
    for name in ("prompt", "sampled", "finish", "started", "seconds"):
        table.add_column(name, no_wrap=True, justify="right")
    for row in rows:
        started = time.strftime("%m-%d %H:%M:%S", time.localtime(row.started_at))
        names = (row.id[:12], row.rollout[:24], row.dialect, row.kind, row.fork or "")
        table.add_row(*map(Text, (*names, str(row.prompt_tokens), str(row.sampled_tokens), row.finish, started, f"{row.seconds:.1f}")))
    with _paged(console):
        console.print(table)
        console.print(f"{table.row_count} calls", highlight=False)


def show_call(store: Store, directory: Path, call: Call, console: Console, *, as_json: bool) -> None:
    """Everything about one call, with its text: the decoded ids where there are any, the messages where not."""
    calls = {each.id: each for each in store.calls(call.rollout_id)}
    full = {**msgspec.to_builtins(call), "messages": conversation(calls, call.id)[:-1], "tools": offered_tools(calls, call.id)}
    if call.delta or call.shared:
        tokenizer = _tokenizer(directory)
        full["prompt_ids"] = store.prompt_ids(call.id)
        full["prompt_text"] = tokenizer.decode(full["prompt_ids"], skip_special_tokens=False)
        full["sampled_text"] = tokenizer.decode(call.sampled, skip_special_tokens=False)
    if as_json:
        _print_json(console, full)
        return
    kinds = {id: lineage.kind for lineage in lineages(list(calls.values())) for id in lineage.call_ids}
    row = asdict(_row(call, kinds[call.id]))
    facts = {**row, "parent": call.parent_id, "error": call.error, "upstream": call.upstream or None, "asked": _asked(call)}
    with _paged(console):
        for name, value in facts.items():
            if value is not None:
                console.print(Text(f"{name:>15}  ", style="bold"), Text(str(value)), sep="", soft_wrap=True)
        if "prompt_text" in full:
            _section(console, "prompt", full["prompt_text"])
            _section(console, "reply", full["sampled_text"])
        else:
            for message in conversation(calls, call.id):
                _section(console, message.get("role", "reply"), _text(message))


def _row(call: Call, kind: LineageKind) -> CallRow:
    usage = usage_of(call)
    return CallRow(
        id=call.id,
        rollout=call.rollout_id,
        dialect=call.dialect,
        kind=kind,
        fork=call.fork,
        prompt_tokens=usage.prompt_tokens,
        sampled_tokens=usage.sampled_tokens,
        finish=call.finish,
        started_at=call.started_at,
        seconds=round(call.ended_at - call.started_at, 3),
    )


def _complete(call: Call) -> bool:
    return call.finish is FinishReason.STOP and call.upstream.get("finish") not in _WITHHELD


def _transcript(calls: Mapping[str, Call], id: str) -> dict[str, Any]:
    row: dict[str, Any] = {"messages": [write_message(Message.from_record(message)) for message in conversation(calls, id)]}
    if tools := offered_tools(calls, id):
        row["tools"] = [write_tool(Tool(**tool)) for tool in tools]
    return row


def _asked(call: Call) -> dict[str, Any]:
    return {name: value for name, value in call.request.items() if name not in ("messages", "messages_shared", "tools")}


def _tokenizer(directory: Path) -> Any:
    """Of the model that the directory's settings name: a run's, or those of `openforge serve`."""
    settings = yaml.safe_load(RunDir.open(directory).config.read_text(encoding="utf-8"))
    return load_tokenizer(Path(settings.get("serve", settings)["model"]["path"]))


def _text(message: Mapping[str, Any]) -> str:
    calls = [f"{call['name']}({call['arguments']})" for call in message.get("tool_calls", ())]
    return "\n".join(filter(None, [message.get("reasoning"), message.get("content"), *calls]))


def _section(console: Console, title: str, text: str) -> None:
    console.rule(title, align="left")
    console.print(Text(text), soft_wrap=True)


def _print_json(console: Console, value: object) -> None:
    # No markup and no wrapping: a line is a value.
    console.file.write(msgspec.json.encode(value).decode() + "\n")


def _paged(console: Console) -> Any:
    return console.pager() if console.is_terminal else nullcontext()
