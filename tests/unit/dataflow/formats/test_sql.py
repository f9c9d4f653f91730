"""`SQLData`, with SQLite and PostgreSQL."""

from __future__ import annotations

import datetime
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from towerpack import ConfigError, DataFlowError
from towerpack.dataflow import BatchData, PrefetchData, ShuffleData, SQLData
from towerpack.dataflow.content import content_of
from towerpack.dataflow.testing import check_flow

Connect = Callable[[], Any]
ROWS = 1000
NAME = 'a "%s" name'
FOLDERS = ["/usr/lib/postgresql/*/bin", "/usr/local/bin", "/usr/bin"]


def fill(connect: Connect, place: str, blob: str) -> None:
    """Make tables: keys are even numbers, stored in descending order."""
    quoted = f'"{NAME.replace(chr(34), chr(34) * 2)}"'
    with closing(connect()) as connection:
        cursor = connection.cursor()
        for name, columns in {
            quoted: f'id integer, x double precision, "a%" text, data {blob}',
            "texts": "word text, n integer",
            "gaps": "id integer, n integer",
        }.items():
            cursor.execute(f"CREATE TABLE {name} ({columns})")
        name = quoted.replace("%", "%%") if place == "%s" else quoted
        rows = [(2 * i, i / 2, f"100% {i}", bytes([i % 256])) for i in reversed(range(ROWS))]
        places = ", ".join([place] * 4)
        cursor.executemany(f"INSERT INTO {name} VALUES ({places})", rows)
        cursor.executemany(
            f"INSERT INTO texts VALUES ({place}, {place})", [(f"w{i}'\"%", i) for i in range(50)]
        )
        gaps = [(1, 1), (None, 2), (3, 3), (3, 4)]
        cursor.executemany(f"INSERT INTO gaps VALUES ({place}, {place})", gaps)
        connection.commit()


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """Address of a server, which cannot run as root."""
    pytest.importorskip("psycopg")
    paths = os.pathsep.join(str(p) for f in FOLDERS for p in sorted(Path("/").glob(f[1:])))
    initdb, postgres = (shutil.which(name, path=paths) for name in ("initdb", "postgres"))
    if initdb is None or postgres is None:
        pytest.skip("needs PostgreSQL's programs initdb and postgres")
    user = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())
    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        os.chown(folder, user.pw_uid, user.pw_gid)
        as_user: dict[str, Any] = {"cwd": folder, "env": {**os.environ, "HOME": folder}}
        if os.getuid() == 0:
            as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        data, quiet = f"{folder}/data", subprocess.DEVNULL
        command = [os.path.realpath(initdb), "-D", data, "-U", "tester", "-A", "trust", "-N"]
        subprocess.run(command, check=True, stdout=quiet, **as_user)
        command = [os.path.realpath(postgres), "-D", data, "-k", folder, "-h", "", "-F"]
        server = subprocess.Popen(command, stderr=quiet, stdout=quiet, **as_user)
        try:
            yield started(f"host={folder} user=tester dbname=postgres", server)
        finally:
            server.send_signal(signal.SIGINT)  # Do not wait for connections.
            server.wait(30)


def started(address: str, server: subprocess.Popen[Any]) -> str:
    """Wait until the server answers."""
    import psycopg

    while True:
        try:
            psycopg.connect(address).close()
        except psycopg.OperationalError:
            assert server.poll() is None, "PostgreSQL ended"
        else:
            return address


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Connect:
    """A function that connects to a database with tables."""
    if request.param == "sqlite":
        opened: Connect = partial(sqlite3.connect, tmp_path_factory.mktemp("sql") / "rows.db")
        fill(opened, "?", "blob")
        return opened
    address = request.getfixturevalue("postgres")
    import psycopg

    opened = partial(psycopg.connect, address)
    fill(opened, "%s", "bytea")
    return opened


def row(i: int) -> dict[str, Any]:
    return {"id": 2 * i, "x": i / 2, "a%": f"100% {i}", "data": bytes([i % 256])}


def test_rows_are_sorted_by_key(connect: Connect) -> None:
    flow = SQLData(connect, NAME)
    assert list(flow) == [row(i) for i in range(ROWS)]
    assert [dp["id"] for dp in PrefetchData(flow, 2)] == list(range(0, 2 * ROWS, 2))
    assert flow.plan().get(7) == row(7)
    assert flow.plan().origin(7)[0].name == f"{NAME}, id = 14"
    ids, texts = next(iter(BatchData(ShuffleData(SQLData(connect, NAME, "id", ["id", "a%"])), 950)))
    assert texts.tolist() == [f"100% {i // 2}" for i in ids] and len({*ids}) == 950


def test_laws(connect: Connect) -> None:
    check_flow(lambda: ShuffleData(SQLData(connect, "texts", key="word")))


def test_queries_and_keys_of_texts(connect: Connect) -> None:
    query = "SELECT word, n * 2 AS twice FROM texts WHERE word LIKE 'w1%' ORDER BY n;"
    rows = list(SQLData(connect, query, "word", ["twice", "word"]))
    assert rows == sorted(((2 * i, f"w{i}'\"%") for i in (1, *range(10, 20))), key=lambda r: r[1])


def test_deleted_rows_are_named(connect: Connect) -> None:
    flow = SQLData(connect, "texts", "word")
    before = content_of(flow)
    with closing(connect()) as connection:
        for change in ("UPDATE texts SET n = 99 WHERE n = 49", "DELETE FROM texts WHERE n = 48"):
            assert content_of(flow) == content_of(SQLData(connect, "texts", "word"))
            connection.cursor().execute(change)
            connection.commit()
            after = content_of(SQLData(connect, "texts", "word"))
            assert after != before
            before = after
    assert len(SQLData(connect, "texts", "word")) == 49
    with pytest.raises(DataFlowError, match=r"word = 'w48.*no longer exists"):
        list(flow)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "nothing cannot be read from the database"),
        (["texts"], "texts must have one column 'id', but has 0"),
        (["texts", "word", ["m"]], "one column 'm'"),
        (["gaps"], "key 'id' of gaps contains NULL"),
        (["SELECT * FROM gaps WHERE n > 2"], "contains 3 more than once"),
        (["DELETE FROM texts"], "cannot be read"),
    ],
)
def test_wrong_tables(connect: Connect, arguments: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SQLData(connect, *arguments)
    assert len(SQLData(connect, NAME)) == ROWS


@pytest.mark.parametrize("wrong", ["rows.db", lambda: 3, lambda: sqlite3.connect("/nowhere/a.db")])
def test_wrong_connections(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="check the database"):
        SQLData(wrong, "rows")


def test_types_of_postgres(postgres: str) -> None:
    import psycopg

    connect = partial(psycopg.connect, postgres, row_factory=psycopg.rows.dict_row)
    query = "SELECT gen_random_uuid() AS id, DATE '2020-01-02' AS day, 1.50::numeric AS price, "
    query += "ARRAY[1, 2] AS numbers, 'x'::bytea AS data, NULL AS nothing"
    with closing(connect()) as connection:
        connection.execute(f"CREATE TABLE IF NOT EXISTS types AS {query}")
        connection.commit()
    (found,) = SQLData(connect, "public.types", columns=["day", "price", "numbers", "data"])
    assert found == (datetime.date(2020, 1, 2), Decimal("1.50"), [1, 2], b"x")
