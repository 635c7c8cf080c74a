"""An archive that is a Delta table.

The account is the table's app transactions, which Delta keeps for ever, a number for each: one for the batch,
and for each log up to where it is archived. Two archivers' commits have the first in common, so that Delta
refuses the slower one's.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

import attrs
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction, RemoveAction

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving.lake import CommitConflict, TableAccount
from brokers.pipeline.archiving.manifest import LogState, Manifest
from brokers.pipeline.archiving.places import ArchivePlace, place_of, written_path

APP = "brokers-archive"
_SIGNED = 1 << 63
_TYPES = {"bigint": "long", "double": "double", "boolean": "boolean", "string": "string"}
_KINDS = {kind: name for name, kind in _TYPES.items()}
_FIELDS = {"offset": "long", "timestamp": "timestamp", "value": "binary", "log": "string", "topic": "string"}
_OURS = {*_FIELDS, "date", "hour"}


@attrs.define(eq=False)
class DeltaAccount(TableAccount):
    """See TableAccount."""

    url: str
    table: DeltaTable = attrs.field(init=False)

    @classmethod
    def open(cls, url: str, origin: str, *, by_hour: bool) -> "DeltaAccount":
        account = cls(origin, by_hour, url)
        try:
            account.place = place_of(url, "")
        except ValueError as error:
            raise Failure(f"--table: {error}", ExitCode.CONFIGURATION) from None
        partitions = {"date": "date"} | ({"hour": "integer"} if by_hour else {})
        fields = {**_FIELDS, **partitions}
        schema = Schema([Field(name, PrimitiveType(kind), nullable=True) for name, kind in fields.items()])
        account.url = account.place.url("").rstrip("/")
        DeltaTable.create(
            account.url,
            schema,
            mode="ignore",
            partition_by=["topic", *partitions],
            description=f"brokers archive of {origin}",
            storage_options=_options(),
        )
        account.load()
        of, _, found = (account.table.metadata().description or "").partition(" of ")
        if of != "brokers archive":
            raise Failure(f"{url} is no table of this command", ExitCode.CONFIGURATION)
        account.require_origin(found)
        account.require_partition("hour" in account.table.metadata().partition_columns)
        return account

    def load(self) -> tuple[int, int]:
        self.table = DeltaTable(self.url, storage_options=_options())
        version = self.table.transaction_version(APP) or 0
        if not hasattr(self, "manifest"):
            columns = {
                field.name: _KINDS.get(str(getattr(field.type, "type", "")), "")
                for field in self.table.schema().fields
                if field.name not in _OURS
            }
            self.manifest = Manifest(version, self.origin, columns=columns)
        return version, self.table.transaction_version(f"{APP}/by") or 0

    def learn(self, found: Iterable[str]) -> None:
        """Raises Failure where the table has batches, but of none of these logs: their source is another."""
        known = {log.name for log in self.manifest.logs.values()}
        logs = dict(self.manifest.logs)
        unknown = [name for name in found if name not in known]
        for name in unknown:
            number = 1
            while (end := self.table.transaction_version(f"{APP}/{name}#{number}")) is not None:
                identity = f"{name}#{number}"
                seen = (self.table.transaction_version(f"{APP}/{identity}/seen") or 0) % (2 * _SIGNED)
                log = LogState(identity, name, name.rpartition("@")[0], str(seen), 0, end)
                logs[log.key] = log
                number += 1
        if unknown and not logs and self.manifest.version:
            text = f"{self.url} has none of these logs: it was made of another folder, or server"
            raise Failure(text, ExitCode.CONFIGURATION)
        self.manifest = attrs.evolve(self.manifest, logs=logs)

    def try_commit(self, following: Manifest, place: ArchivePlace, replaced: Sequence[str]) -> None:
        there = {field.name for field in self.table.schema().fields}
        if fresh := {name: kind for name, kind in following.columns.items() if name not in there}:
            fields = [Field(name, PrimitiveType(_TYPES[kind])) for name, kind in fresh.items()]
            with self._told(following):
                self.table.alter.add_columns(fields)
            self.load()
        if place.url("") != self.place.url(""):
            text = "its files can be registered in a Delta table of the same folder only"
            raise Failure(f"{place.url('')}: {text}", ExitCode.CONFIGURATION)
        marks = {APP: following.version, f"{APP}/by": self.by}
        for key, log in following.logs.items():
            if log != self.manifest.logs.get(key):
                seen = int(log.seen or 0)
                marks[f"{APP}/{log.identity}"] = log.end
                marks[f"{APP}/{log.identity}/seen"] = seen if seen < _SIGNED else seen - 2 * _SIGNED
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                path=written_path(self.place, part),
                size=part.file_bytes,
                partition_values=_partition(part.topic, part.date),
                modification_time=following.written_ms,
                data_change=True,
                stats=json.dumps({"numRecords": part.records}),
            )
            for part in following.moves
        ]
        properties = CommitProperties(
            max_commit_retries=0,
            app_transactions=[Transaction(app, version) for app, version in marks.items()],
        )
        actions += self._removals(replaced, following.written_ms)
        with self._told(following):
            self.table.create_write_transaction(
                actions,
                "append",
                self.table.schema(),
                self.table.metadata().partition_columns,
                commit_properties=properties,
            )
        self.table.update_incremental()

    @contextmanager
    def _told(self, following: Manifest) -> Iterator[None]:
        """Raise CommitConflict after another's commit, and OSError where this one was not made."""
        try:
            yield
        except CommitFailedError as error:
            raise CommitConflict from error
        except (DeltaError, OSError) as error:
            if self.load() != (following.version, self.by):
                raise OSError(str(error)) from error

    def day_files(self, day: date) -> list[str]:
        return [each["path"] for each in self._actions() if each["partition.date"] == day]

    def _actions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pa.table(self.table.get_add_actions(flatten=True)).to_pylist()
        return found

    def _removals(self, paths: Sequence[str], now_ms: int) -> list[RemoveAction]:
        if not paths:
            return []
        there = {each["path"]: each for each in self._actions()}
        removals = []
        for path in paths:
            partition: dict[str, str | None] = {
                name: str(there[path][f"partition.{name}"])
                for name in self.table.metadata().partition_columns
            }
            removals.append(RemoveAction(path, True, now_ms, there[path]["size_bytes"], partition))
        return removals

    def expire(self, before: date) -> None:
        self.table.delete(f"date < '{before}'")


def _partition(topic: str, date_of: str) -> dict[str, str | None]:
    day, _, hour = date_of.partition("/hour=")
    values: dict[str, str | None] = {"topic": topic, "date": day}
    return values | ({"hour": str(int(hour))} if hour else {})


def _options() -> dict[str, str] | None:
    """Return what the environment says of a store, but that delta-rs does not take from it."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
    return {"allow_http": "true"} if endpoint.startswith("http://") else None
