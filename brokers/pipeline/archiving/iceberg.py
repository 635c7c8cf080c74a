"""An archive that is an Iceberg table.

The account is a property of the table, which the transaction of each batch sets with the files that it adds;
the snapshot's summary has the batch's number. (Of the account in summaries alone, the newest might be expired
behind other engines' snapshots.) Files have no column `topic`: readers take it from the partition.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import attrs
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, Transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
)
from pyiceberg.utils.config import Config

from brokers.errors import ExitCode, Failure
from brokers.pipeline.archiving import manifest as manifests
from brokers.pipeline.archiving.lake import CommitConflict, TableAccount
from brokers.pipeline.archiving.manifest import Manifest, Part
from brokers.pipeline.archiving.places import ArchivePlace, BucketPlace, place_of, written_path

ACCOUNT = "brokers.archive"
MARK = "brokers.archive.version"

_field = partial(NestedField, required=False)
_SCHEMA = Schema(
    _field(1, "offset", LongType()),
    _field(2, "timestamp", TimestamptzType()),
    _field(3, "value", BinaryType()),
    _field(4, "log", StringType()),
    _field(5, "topic", StringType()),
)
_TYPES: dict[str, PrimitiveType] = {
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "string": StringType(),
}
_KINDS = {str(kind): name for name, kind in _TYPES.items()}
_STORE_KEYS = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
}
"""The catalog's settings by which executors reach the table's bucket."""


@attrs.define(eq=False)
class IcebergAccount(TableAccount):
    """See TableAccount."""

    catalog: Catalog
    name: str
    table: Table = attrs.field(init=False)

    @classmethod
    def open(cls, name: str, origin: str, *, by_hour: bool) -> "IcebergAccount":
        catalog_name, _, table = name.partition(".")
        try:
            config: dict[str, Any] = {**(Config().get_catalog_config(catalog_name) or {})}
            catalog = load_catalog(catalog_name, **config)
        except ValueError as error:
            where = "it is looked for in .pyiceberg.yaml and in the environment"
            text = f"catalog {catalog_name}: {error} ({where})"
            raise Failure(text, ExitCode.CONFIGURATION) from None
        account = cls(origin, by_hour, catalog, table)
        account._open()
        return account

    def _open(self) -> None:
        try:
            self.load()
        except NoSuchTableError:
            self._create()
            self.load()
        self.require_origin(self.manifest.origin)
        transforms = [each.transform for each in self.table.spec().fields]
        self.require_partition(any(isinstance(each, HourTransform) for each in transforms))
        config = {
            ours: str(self.table.io.properties[key])
            for key, ours in _STORE_KEYS.items()
            if key in self.table.io.properties
        }
        self.place = place_of(f"{self.table.location()}/data", "", config)

    def _create(self) -> None:
        time: Transform[Any, Any] = HourTransform() if self.by_hour else DayTransform()
        spec = PartitionSpec(
            PartitionField(5, 1000, IdentityTransform(), "topic"),
            PartitionField(2, 1001, time, "hour" if self.by_hour else "date"),
        )
        properties = {
            ACCOUNT: Manifest(origin=self.origin).pack().decode(),
            TableProperties.DEFAULT_NAME_MAPPING: _SCHEMA.name_mapping.model_dump_json(),
            # The files have no bounds of it: whole records say nothing to a planner.
            f"{TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX}.value": "none",
        }
        self.catalog.create_namespace_if_not_exists(self.name.rpartition(".")[0])
        try:
            self.catalog.create_table(self.name, _SCHEMA, partition_spec=spec, properties=properties)
        except TableAlreadyExistsError:
            pass

    def load(self) -> tuple[int, int]:
        self.table = self.catalog.load_table(self.name)
        data = self.table.properties.get(ACCOUNT, "").encode()
        found = manifests.unpack(data)
        if found is None:
            text = f"{self.name} is no table of this command, or its property {ACCOUNT} is damaged"
            raise Failure(text, ExitCode.CONFIGURATION)
        base = set(_SCHEMA.column_names)
        columns = {
            field.name: _KINDS.get(str(field.field_type), "")
            for field in self.table.schema().fields
            if field.name not in base
        }
        if not hasattr(self, "manifest"):
            self.manifest = attrs.evolve(found, columns=columns)
        return found.version, int(self.table.properties.get(f"{ACCOUNT}.by", 0))

    def try_commit(self, following: Manifest, place: ArchivePlace, replaced: Sequence[str]) -> None:
        table = self.table
        # pyiceberg would try again by itself, on top of what another archiver has committed.
        table.metadata = table.metadata.model_copy(
            update={"properties": {**table.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}}
        )
        transaction = table.transaction()
        there = set(table.schema().column_names)
        if fresh := {name: kind for name, kind in following.columns.items() if name not in there}:
            with transaction.update_schema() as update:
                for name, kind in fresh.items():
                    update.add_column(name, _TYPES[kind])
        account = attrs.evolve(following, moves=(), columns={}).pack().decode()
        transaction.set_properties({ACCOUNT: account, f"{ACCOUNT}.by": str(self.by)})
        snapshot = transaction.update_snapshot(snapshot_properties={MARK: str(following.version)})
        files = [task.file for task in table.scan().plan_files()] if replaced else []
        gone = [file for file in files if file.file_path in replaced]
        with snapshot.overwrite() if gone else snapshot.fast_append() as adding:
            for file in gone:
                adding.delete_data_file(file)
            for part in following.moves:
                adding.append_data_file(self._data_file(part, place, transaction.table_metadata))
        try:
            transaction.commit_transaction()
        except CommitFailedException as error:
            raise CommitConflict from error
        except Exception as error:  # pyiceberg's own, a catalog's, a file system's
            version, by = self.load()
            if (version, by) != (following.version, self.by):
                raise OSError(str(error)) from error

    def _data_file(self, part: Part, place: ArchivePlace, metadata: TableMetadata) -> DataFile:
        path = place.url(written_path(place, part) if part.token else part.path)
        if not isinstance(place, BucketPlace):
            path = f"file://{path}"
        file = self.table.io.new_input(path)
        with file.open() as stream:
            footer = pq.read_metadata(stream)
        schema = metadata.schema()
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(schema, metadata.properties),
            parquet_column_mapping=parquet_path_to_id_mapping(schema),
        )
        day, _, hour = part.date.partition("/hour=")
        days = date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(part.topic, days * 24 + int(hour) if hour else days),
            file_size_in_bytes=len(file),
            sort_order_id=None,
            spec_id=metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def day_files(self, day: date) -> list[str]:
        first = datetime(day.year, day.month, day.day, tzinfo=UTC)
        last = first + timedelta(days=1)
        chosen = f"timestamp >= '{first.isoformat()}' and timestamp < '{last.isoformat()}'"
        return [task.file.file_path for task in self.table.scan(row_filter=chosen).plan_files()]

    def expire(self, before: date) -> None:
        moment = datetime(before.year, before.month, before.day, tzinfo=UTC)
        self.table = self.catalog.load_table(self.name)
        older = f"timestamp < '{moment.isoformat()}'"
        if any(True for _ in self.table.scan(row_filter=older).plan_files()):
            self.table.delete(older)
            self.load()
