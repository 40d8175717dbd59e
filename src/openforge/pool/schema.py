"""The pool's tables: one schema for SQLite and PostgreSQL.

Invariant: rows of `calls` are only ever inserted. A call stores its parent and its delta, so a row is O(new tokens) however long the
history is. There are no foreign keys: a call must never be refused because the row of its rollout is missing (the gateway serves without
one, too).
"""

from __future__ import annotations

from sqlalchemy import JSON, Column, Double, Index, Integer, LargeBinary, MetaData, String, Table, Text

SCHEMA_VERSION = "1"

metadata = MetaData()

meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", String, nullable=False))

tasks = Table(
    "tasks",
    metadata,
    Column("id", String, primary_key=True),
    Column("instruction", Text, nullable=False),
    Column("domain", String, nullable=False),
    Column("data", JSON, nullable=False),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("id", String, primary_key=True),
    Column("task_id", String, nullable=False),
    Column("unit", Integer, nullable=False),
    Column("place", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("split", String, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("outcome", String),
    Column("reward", Double),
    Column("reward_parts", JSON),
    Column("detail", Text, nullable=False),
    Column("output", Text, nullable=False),
    Index("rollouts_unit", "unit"),
)

calls = Table(
    "calls",
    metadata,
    Column("id", String, primary_key=True),
    Column("rollout_id", String, nullable=False),
    Column("arrival", Integer, nullable=False),
    Column("parent_id", String),
    Column("shared", Integer, nullable=False),
    Column("fork", String),
    Column("finish", String, nullable=False),
    Column("dialect", String, nullable=False),
    Column("delta_tokens", Integer, nullable=False),
    Column("sampled_tokens", Integer, nullable=False),
    Column("newest_version", Integer),
    Column("started_at", Double, nullable=False),
    Column("first_token_at", Double),
    Column("ended_at", Double, nullable=False),
    Column("delta", LargeBinary, nullable=False),
    Column("sampled", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary, nullable=False),
    Column("versions", LargeBinary, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("calls_rollout", "rollout_id"),
)

units = Table(
    "units",
    metadata,
    Column("unit", Integer, primary_key=True, autoincrement=False),
    Column("task_id", String, nullable=False),
    Column("group_size", Integer, nullable=False),
    Column("state", String, nullable=False),
    Column("step", Integer),
    Column("reason", Text, nullable=False),
    Column("finished_at", Double),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("step", Integer, primary_key=True, autoincrement=False),
    Column("version", Integer, nullable=False),
    Column("path", Text, nullable=False),
)
