"""An object store: S3 and what speaks its language, Google Cloud Storage, Azure Data Lake Storage.

Three clients reach it: Arrow for the columns of tables, delta-rs for their logs, and Spark for what it reads and for checkpoints. Each
names the same things otherwise; here they get the same options.

Invariant: a file is there whole or not at all, and outlasts whatever happens to the machine that wrote it. What an option says is
shown nowhere.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from ...errors import LakeError
from .contract import Storage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyarrow.fs import FileSystem

__all__ = ["ObjectStore"]

Options = Mapping[str, str]

_CONNECT_S, _ANSWER_S, _ATTEMPTS, _CUT_ANSWERS = 5, 20, 10, 5
_AWS_PROVIDERS = "org.apache.hadoop.fs.s3a"


@dataclass(frozen=True)
class ObjectStore(Storage):
    """A lake in a bucket."""

    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @classmethod
    def at(cls, uri: str, options: Options) -> ObjectStore:
        """The store at a URI; LakeError where there is none of its kind, or where it has no such option."""
        scheme, _, place = uri.rstrip("/").partition("://")
        scheme = {"s3": "s3a"}.get(scheme, scheme)
        if scheme not in _KINDS:
            raise LakeError(
                f"a lake can't lie at {scheme}://…; it takes a folder, or {', '.join(f'{kind}://' for kind in _TAKEN)}"
            )
        if not urlsplit(f"{scheme}://{place}").netloc:
            raise LakeError(f"the lake at {uri!r} names no bucket; write {scheme}://BUCKET/PATH")
        known = _KINDS[scheme].options
        for name in options:
            if name not in known:
                raise LakeError(f"--lake-option {name} is none of a lake at {scheme}://…; it takes {', '.join(known) or 'none'}")
        return cls(f"{scheme}://{place}", tuple(sorted(options.items())))

    @property
    def local_folder(self) -> None:
        """It lies elsewhere."""
        return

    @property
    def renames(self) -> bool:
        """Here a rename is a copy, over whatever has the name."""
        return False

    @property
    def spark_conf(self) -> Mapping[str, str]:
        """For Hadoop's file systems, which Spark uses."""
        return _KINDS[self._scheme].spark_conf(self.root, dict(self.options))

    @property
    def jars(self) -> str | None:
        """Those of the cloud."""
        return _KINDS[self._scheme].jars

    @property
    def log_options(self) -> dict[str, str]:
        """For its `object_store`."""
        return _KINDS[self._scheme].log_options(self.root, dict(self.options))

    @property
    def _scheme(self) -> str:
        return self.root.partition("://")[0]

    @property
    def _files(self) -> FileSystem:
        return _file_system(self._scheme, self.root, self.options)

    def _key(self, path: str) -> str:
        """As Arrow takes it: the bucket, and the place in it."""
        place = urlsplit(path, allow_fragments=False)
        return f"{place.netloc.partition('@')[0]}{path[path.index(place.netloc) + len(place.netloc) :]}"

    def create(self) -> None:
        """Makes sure that the bucket is there, and that it may be used."""
        bucket = self._key(self.root).partition("/")[0]
        if not self._files.get_file_info(bucket).type:
            raise FileNotFoundError(errno.ENOENT, f"there is no bucket {bucket!r}")

    def is_missing(self) -> bool:
        """Whether no object's name begins with the root."""
        return not self._files.get_file_info(self._key(self.root)).type

    def to_path(self, name: str) -> str:
        """As it is."""
        return name

    def list_files(self, folder: str, pattern: str, *, below: bool = False) -> list[str]:
        """In no order."""
        from pyarrow.fs import FileSelector

        key = self._key(folder)
        found = self._files.get_file_info(FileSelector(key, allow_not_found=True, recursive=below))
        return [f"{folder}{info.path[len(key) :]}" for info in found if info.is_file and fnmatchcase(info.base_name, pattern)]

    def read_text(self, path: str) -> str:
        """All of it, or nothing."""
        cut = 0
        while True:
            try:
                with self._files.open_input_file(self._key(path)) as file:
                    return bytes(file.read()).decode()
            except FileNotFoundError:
                return ""
            except OSError:
                # The client asks again for an answer that did not begin, but not for one that was cut.
                cut += 1
                if cut == _CUT_ANSWERS:
                    raise
                time.sleep(0.05 * 2**cut)

    def write_bytes(self, path: str, content: bytes | pa.Buffer) -> None:
        """In one request."""
        with self._files.open_output_stream(self._key(path)) as file:
            file.write(content)

    def open_parquet(self, path: str) -> pq.ParquetFile:
        """What is asked for is fetched in as few requests as it can be."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(self._key(path), coerce_int96_timestamp_unit="us", filesystem=self._files, pre_buffer=True)

    def create_file(self, path: str) -> pa.NativeFile:
        """Sent in parts; it is there when the last one is."""
        return self._files.open_output_stream(self._key(path))

    def remove_file(self, path: str) -> None:
        """At once."""
        with suppress(FileNotFoundError):
            self._files.delete_file(self._key(path))

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Asked for side by side."""
        return [info.size if info.is_file else None for info in self._files.get_file_info([*map(self._key, paths)])]

    def sync(self, paths: Iterable[str]) -> None:
        """What the store has confirmed is durable."""

    def _has_log(self, path: str) -> bool:
        return bool(self._files.get_file_info(f"{self._key(path)}/_delta_log").type)


@cache
def _file_system(scheme: str, root: str, options: tuple[tuple[str, str], ...]) -> FileSystem:
    return _KINDS[scheme].file_system(root, dict(options))


class _Kind(NamedTuple):
    """How a kind of store is reached."""

    options: tuple[str, ...]
    file_system: Callable[[str, Options], FileSystem]
    log_options: Callable[[str, Options], dict[str, str]]
    spark_conf: Callable[[str, Options], Mapping[str, str]]
    jars: str | None


def _known(values: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value is not None}


def _s3_file_system(root: str, options: Options) -> FileSystem:
    from pyarrow.fs import AwsDefaultS3RetryStrategy, S3FileSystem

    endpoint = urlsplit(options.get("endpoint", ""))
    return S3FileSystem(
        access_key=options.get("access_key_id"),
        secret_key=options.get("secret_access_key"),
        session_token=options.get("session_token"),
        anonymous=options.get("anonymous") == "true",
        region=options.get("region"),
        endpoint_override=endpoint.netloc or None,
        scheme=endpoint.scheme or "https",
        connect_timeout=_CONNECT_S,
        request_timeout=_ANSWER_S,
        retry_strategy=AwsDefaultS3RetryStrategy(max_attempts=_ATTEMPTS),
        # What is small is sent in one request.
        allow_delayed_open=True,
    )


def _s3_log_options(root: str, options: Options) -> dict[str, str]:
    same = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
    return _known(
        {
            **{f"aws_{name}": options.get(name) for name in same},
            "aws_skip_signature": options.get("anonymous"),
            "aws_conditional_put": "etag",
            "allow_http": "true" if options.get("endpoint", "").startswith("http:") else None,
            "connect_timeout": f"{_CONNECT_S}s",
            "timeout": f"{_ANSWER_S}s",
        }
    )


def _s3_spark_conf(root: str, options: Options) -> dict[str, str]:
    endpoint = options.get("endpoint")
    provider = f"{_AWS_PROVIDERS}.SimpleAWSCredentialsProvider"
    if options.get("anonymous") == "true":
        provider = f"{_AWS_PROVIDERS}.AnonymousAWSCredentialsProvider"
    elif "session_token" in options:
        provider = f"{_AWS_PROVIDERS}.TemporaryAWSCredentialsProvider"
    elif "access_key_id" not in options:
        # The chain that the other clients follow: the environment, the profile, the machine's own.
        provider = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
    found = _known(
        {
            "endpoint": endpoint,
            "endpoint.region": options.get("region"),
            "access.key": options.get("access_key_id"),
            "secret.key": options.get("secret_access_key"),
            "session.token": options.get("session_token"),
            "aws.credentials.provider": provider,
            # A store of one's own seldom has a name for each bucket.
            "path.style.access": "true" if endpoint else None,
            "connection.ssl.enabled": "false" if endpoint and endpoint.startswith("http:") else None,
            "connection.establish.timeout": f"{_CONNECT_S}s",
            "connection.timeout": f"{_ANSWER_S}s",
            "input.stream.type": "classic",
        }
    )
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in found.items()}


def _gs_file_system(root: str, options: Options) -> FileSystem:
    from pyarrow.fs import GcsFileSystem

    return GcsFileSystem()


def _gs_spark_conf(root: str, options: Options) -> dict[str, str]:
    package = "com.google.cloud.hadoop.fs.gcs"
    return {
        "spark.hadoop.fs.gs.impl": f"{package}.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": f"{package}.GoogleHadoopFS",
        "spark.hadoop.fs.gs.auth.type": "APPLICATION_DEFAULT",
    }


def _account(root: str) -> str:
    """`container@account.dfs.core.windows.net`: the account."""
    return urlsplit(root).netloc.partition("@")[2].partition(".")[0]


def _azure_file_system(root: str, options: Options) -> FileSystem:
    from pyarrow.fs import AzureFileSystem

    return AzureFileSystem(_account(root), account_key=options.get("account_key"))


def _azure_log_options(root: str, options: Options) -> dict[str, str]:
    return _known({"azure_storage_account_name": _account(root), "azure_storage_account_key": options.get("account_key")})


def _azure_spark_conf(root: str, options: Options) -> dict[str, str]:
    host, key = urlsplit(root).netloc.partition("@")[2], options.get("account_key")
    return {} if key is None else {f"spark.hadoop.fs.azure.account.key.{host}": key}


_TAKEN = ("s3", "s3a", "gs", "abfss")
_KINDS: Mapping[str, _Kind] = {
    "s3a": _Kind(
        ("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "anonymous"),
        _s3_file_system,
        _s3_log_options,
        _s3_spark_conf,
        "s3",
    ),
    "gs": _Kind((), _gs_file_system, lambda root, options: {}, _gs_spark_conf, None),
    "abfss": _Kind(("account_key",), _azure_file_system, _azure_log_options, _azure_spark_conf, None),
}
