"""The interface to the database of a record: a SQLite file, or a schema of a PostgreSQL server.

All SQL of the store is in the part of the language that SQLite 3.37 and PostgreSQL 15 have in
common, with placeholders as of SQLite: ``?``, ``?1`` or ``:name``. Truth values are the numbers 0
and 1.
"""

from __future__ import annotations

import os
import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from provisioner.store import Holder, StoreError, StoreUnusableError
from provisioner.values import T, frozen

SHADOW = "shadow"
"""Key of ``meta`` that only the store of a shadow has."""
BUSY_TIMEOUT_S = 10.0
"""Longest wait of a transaction for another writer: an operator's request takes milliseconds."""
SERVER_SILENCE_S = 30.0
"""Longest time without an answer of a database server to a statement: then it is taken for away."""
NOTHING_RECORDED = "nothing was recorded, and nothing is acted on until a write succeeds"
_BIRTH_LETTERS = string.ascii_lowercase + string.digits


@frozen
class ServerSchema:
    """The place of a record on a PostgreSQL server."""

    url: str
    """Without a password."""
    schema: str
    password_file: Path | None = None
    password_variable: str = ""

    def __str__(self) -> str:
        return f"{self.url}{'&' if '?' in self.url else '?'}schema={self.schema}"

    @classmethod
    def of(cls, url: str, schema: str, secret: Mapping[str, Any]) -> ServerSchema:
        """Return the place that a URL names; ``?schema=`` in it goes before ``schema``."""
        parts = urlsplit(url)
        words = dict(parse_qsl(parts.query))
        schema = words.pop("schema", schema)
        url = urlunsplit(parts._replace(query=urlencode(words)))
        return cls(url, schema, secret.get("file"), secret.get("env") or "")

    def password(self) -> dict[str, Any]:
        """Return the password as an argument, read at each call; nothing without one."""
        if self.password_file is not None:
            try:
                return {"password": self.password_file.read_text().strip()}
            except OSError as error:
                raise StoreUnusableError(
                    f"store {self}: its password cannot be read: {error}. Let this account read the file, or name "
                    "the record with --store and a role of your own"
                ) from error
        if self.password_variable:
            return {"password": os.environ.get(self.password_variable, "")}
        return {}


Place = Path | ServerSchema


def place_of(text: str, schema: str = "", secret: Mapping[str, Any] | None = None) -> Place:
    """Return the place that a path or a URL names. ``secret``: its password, as ``file`` or ``env``."""
    if text.startswith(("postgresql://", "postgres://")):
        return ServerSchema.of(text, schema, secret or {})
    return Path(text)


def place_in(tree: Any, directory: Path) -> Place | None:
    """Return the place that an unchecked configuration in a directory names; None if it names none."""
    section = tree.get("store") if isinstance(tree, Mapping) else None
    if not isinstance(section, Mapping):
        return None
    path = section.get("path")
    if isinstance(path, str) and path:
        return directory / Path(path).expanduser()
    if not isinstance(section.get("url"), str):
        return None
    given = section.get("password")
    secret = dict(given) if isinstance(given, Mapping) else {}
    if secret.get("file"):
        secret["file"] = directory / Path(str(secret["file"])).expanduser()
    return place_of(section["url"], str(tree.get("controller", "")), secret)


def database_of(place: Place, silence_s: float = SERVER_SILENCE_S) -> Database:
    """Return the database at a place. Raises :class:`StoreError` if the library for it is missing.

    ``silence_s``: longest time without an answer, if it is a server.
    """
    if isinstance(place, Path):
        from provisioner.store.file import SqliteDatabase

        return SqliteDatabase(place)
    try:
        from provisioner.store.postgresql import PostgresDatabase
    except ImportError as error:
        raise StoreError(f"store {place}: {error}. Install the extra `postgresql`") from error
    return PostgresDatabase(place, silence_s)


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def description(self) -> Any: ...

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def fetchall(self) -> list[Any]: ...

    def __iter__(self) -> Iterator[Any]: ...


class StoreConnection(Protocol):
    """A connection that begins no transaction by itself."""

    @property
    def in_transaction(self) -> bool: ...

    def execute(self, statement: str, values: Any = ..., /) -> Cursor: ...

    def executemany(self, statement: str, rows: Iterable[Any], /) -> Cursor: ...

    def close(self) -> None: ...


class Database(ABC):
    """The database of one record. A controller holds it; readers open it for each call."""

    clock: ClassVar[str]
    """Its time in SQL, in seconds since the epoch."""
    begin_brief: ClassVar[str]
    """Statement that begins a transaction of a few rows, which waits for no other one that it need not."""
    errors: ClassVar[type[Exception]]
    """Base class of the errors of its statements."""
    place: Place

    @abstractmethod
    def hold(
        self, controller: str, birth: str | None, *, shadow: bool = False, shared: bool = False
    ) -> tuple[StoreConnection, str]:
        """Lock the record for this process, and create or migrate it. Return a connection and the claim to record.

        ``shared``: members lock it together, and exclude a controller on its own.

        Raises :class:`StoreError`.
        """

    @abstractmethod
    def release(self) -> None:
        """Unlock the record; without effect if it is not locked."""

    @abstractmethod
    def refuse_claim(self, claim: str) -> None:
        """Raise :class:`StoreHeldError` if the recorded claim is of another controller that lives."""

    @abstractmethod
    def is_lost(self, sql: Any) -> bool:
        """Return True if a connection has ended by itself."""

    @abstractmethod
    def begin(self, sql: Any) -> None:
        """Begin a transaction that may write from its first statement on."""

    @abstractmethod
    def end_writer(self, sql: Any, epoch: int, nonce: str) -> None:
        """End the connection that holds the lock of writers, if this is the term: a leader may hang amid a record."""

    @abstractmethod
    def limit_wait(self, sql: Any, wait_s: float) -> None:
        """Wait no longer than this for other writers."""

    @abstractmethod
    def run_script(self, sql: Any, script: str) -> None:
        """Run a script of definitions."""

    @abstractmethod
    def count_on(self, sql: Any) -> None:
        """Let numbers that the database gives go on behind those on record, after rows were copied."""

    @abstractmethod
    def reading(self, *, write: bool) -> StoreConnection:
        """Return a connection in a transaction, for :meth:`done`. Raises :attr:`errors`."""

    @abstractmethod
    def done(self, sql: Any) -> None:
        """Take back a connection; a transaction that is not committed is rolled back."""

    @abstractmethod
    def disconnect(self) -> None:
        """Close the connections that were taken back."""

    @abstractmethod
    def exists(self) -> bool:
        """Return False if there is certainly no record."""

    @abstractmethod
    def probe(self) -> str:
        """Return why a controller of this user could not write the record; empty if it could. Raises StoreError."""

    @abstractmethod
    def version(self, sql: Any) -> int:
        """Return the version of the schema. Raises :class:`StoreUnusableError` if it is no store, or too new."""

    @abstractmethod
    def holder(self) -> Holder | None:
        """Return the process that holds the record now. Raises PermissionError if this user may not ask."""

    @abstractmethod
    def size(self) -> tuple[int, int | None]:
        """Return the bytes of the record, and those free beside it; None: unknown."""

    @abstractmethod
    def unusable(self, error: BaseException) -> StoreError:
        """Return one of :attr:`errors` as an error that names the repair."""

    def unrecordable(self, error: BaseException) -> StoreUnusableError:
        """Return the error for a value that no store can hold: NaN, an integer beyond 64 bits, or invalid text."""
        return StoreUnusableError(
            f"store {self.place}: a value cannot be recorded ({error}): an adapter let through what it should not "
            f"have; {NOTHING_RECORDED}"
        )

    def refuse_other(self, meta: Mapping[str, str], controller: str, shadow: bool) -> None:
        """Raise :class:`StoreUnusableError` if the record is of another controller."""
        if (SHADOW in meta) is not shadow:
            whose, how = (
                ("a controller", "without `--shadow`")
                if shadow
                else ("a shadow", "with `--shadow`")
            )
            raise StoreUnusableError(
                f"store {self.place} is the record of {whose}: run it {how}, or set {self.setting} to another one"
            )
        if (owner := meta["controller"]) != controller:
            raise StoreUnusableError(
                f"store {self.place} belongs to controller {owner!r}, not {controller!r}: "
                f"set `controller:` back, or give this controller a {self.setting} of its own"
            )

    @property
    def setting(self) -> str:
        return "`store: path:`" if isinstance(self.place, Path) else "`store: url:`"


def new_meta(controller: str, birth: str | None, shadow: bool) -> dict[str, str]:
    """Return the keys and values of a new record."""
    meta = {
        "controller": controller,
        "birth": birth or "".join(secrets.choice(_BIRTH_LETTERS) for _ in range(4)),
        "tick": "0",
        "at": "0.0",
        "next_serial": "1",
    }
    return meta | ({SHADOW: "1"} if shadow else {})


BATCH_ROWS = 500
"""Rows deleted, or queried, in one statement."""


def batches(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield slices of values for one statement each."""
    for start in range(0, len(values), BATCH_ROWS):
        yield values[start : start + BATCH_ROWS]


def marks(values: Sequence[object]) -> str:
    """Return placeholders for values, as for ``IN``."""
    return ", ".join("?" * len(values)) or "NULL"
