"""Addresses and keys."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
import zmq.auth

from towerpack import ConfigError
from towerpack.dataflow import DataFromList
from towerpack.dataflow.remote import RemoteDataZMQ, generate_keys, send_dataflow_zmq
from towerpack.dataflow.remote._address import check_address, check_free
from towerpack.dataflow.remote._keys import client_keys, server_keys


@pytest.mark.parametrize(
    "address",
    [
        "tcp://127.0.0.1:5555",
        "tcp://127.8.9.1:1",
        "tcp://localhost:65535",
        "tcp://[::1]:5555",
        "ipc:///tmp/socket",
        "ipc://@abstract",
        "inproc://name",
    ],
)
def test_local_addresses_need_no_keys(address: str) -> None:
    check_address(address, None)


@pytest.mark.parametrize(
    "address",
    [
        "tcp://*:5555",
        "tcp://0.0.0.0:5555",
        "tcp://10.0.0.1:5555",
        "tcp://[::]:5555",
        "tcp://eth0:5555",
        "tcp://localhost.example.org:5555",
        "tcp://127.0.0.1.example.org:5555",
    ],
)
def test_open_addresses_need_keys(address: str) -> None:
    with pytest.raises(ConfigError, match="there are no keys") as caught:
        check_address(address, None)
    assert "towerpack data keys" in str(caught.value)
    check_address(address, "keys")
    with pytest.raises(ConfigError, match="there are no keys"):
        RemoteDataZMQ("ipc:///tmp/x", address)
    with pytest.raises(ConfigError, match="there are no keys"):
        send_dataflow_zmq(DataFromList([(1,)]), address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "127.0.0.1:5555",
        "tcp://",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:*",
        "tcp://127.0.0.1:80;10.0.0.1:80",
        "tcp://10.0.0.1:5;127.0.0.1:80",
        "tcp://::1:5555",
        "udp://127.0.0.1:5555",
        "epgm://x",
        "http://127.0.0.1:80",
    ],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="expected"):
        check_address(address, "keys")


def test_keys_are_made(tmp_path: Path) -> None:
    folder = generate_keys(tmp_path / "new" / "keys")
    server, client = server_keys(folder), client_keys(folder)
    assert client.server == server.public
    assert len(server.allowed) == 1
    for file in folder.glob("*.key_secret"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # In the format of ZeroMQ's own tools.
    assert zmq.auth.load_certificate(folder / "client.key_secret") == (client.public, client.secret)
    assert zmq.auth.load_certificate(folder / "server.key") == (server.public, None)


def test_clients_are_added_and_nothing_is_overwritten(tmp_path: Path) -> None:
    generate_keys(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.key*")}
    with pytest.raises(ConfigError, match=r"client\.key_secret exists"):
        generate_keys(tmp_path)
    generate_keys(tmp_path, ["one", "two"])
    assert {file: file.read_bytes() for file in before} == before
    assert len(server_keys(tmp_path).allowed) == 3
    assert client_keys(tmp_path / "one.key_secret") != client_keys(tmp_path / "two.key_secret")
    assert client_keys(tmp_path) == client_keys(tmp_path / "client.key_secret")


@pytest.mark.parametrize("name", ["server", "", "../x", "a/b", ".x", "x" * 65])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a name"):
        generate_keys(tmp_path / "keys", [name])
    assert not (tmp_path / "keys").exists()


def test_each_side_needs_its_own_files_only(tmp_path: Path) -> None:
    folder = generate_keys(tmp_path / "keys", ["gpu"])
    (folder / "server.key_secret").rename(tmp_path / "server.key_secret")
    client_keys(folder)
    with pytest.raises(ConfigError, match="cannot be read"):
        server_keys(folder)
    (tmp_path / "server.key_secret").rename(folder / "server.key_secret")
    (folder / "gpu.key_secret").unlink()
    (folder / "server.key").unlink()
    server_keys(folder)
    with pytest.raises(ConfigError, match="no client's secret key"):
        client_keys(folder)
    (folder / "allowed" / "gpu.key").unlink()
    with pytest.raises(ConfigError, match="nobody could connect"):
        server_keys(folder)


def test_it_must_be_clear_which_key_is_meant(tmp_path: Path) -> None:
    generate_keys(tmp_path, ["one", "two"])
    with pytest.raises(ConfigError, match="does not say which key") as caught:
        client_keys(tmp_path)
    assert "one.key_secret, two.key_secret" in str(caught.value)


def test_secrets_must_be_secret(tmp_path: Path) -> None:
    generate_keys(tmp_path)
    os.chmod(tmp_path / "client.key_secret", 0o640)
    with pytest.raises(ConfigError, match=r"chmod 600 .*client\.key_secret"):
        client_keys(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe" * 50,
        b'public-key = "short"',
        b'public-key = "' + b"~" * 40 + b'"\nsecret-key = "' + b"~" * 40 + b'"',
        b'public-key = "' + b"a" * 40 + b'"',
        b'public-key = "' + b"a" * 40 + b'"\nsecret-key = "' + b"b" * 40 + b'"',
        b"\0" * (1 << 20),
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    generate_keys(tmp_path)
    (tmp_path / "client.key_secret").write_bytes(content)
    with pytest.raises(ConfigError, match="damaged, or no file of keys"):
        client_keys(tmp_path)


def test_a_file_is_no_folder_of_keys(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / "file" / "keys"):
        with pytest.raises(ConfigError, match="cannot be made"):
            generate_keys(path)
    assert (tmp_path / "file").read_text() == "precious"


def test_one_name_is_one_client(tmp_path: Path) -> None:
    generate_keys(tmp_path, "gpu")
    assert [file.name for file in (tmp_path / "allowed").iterdir()] == ["gpu.key"]


@pytest.mark.parametrize("address", [None, 5555, b"tcp://127.0.0.1:5555"])
def test_an_address_is_a_str(address: Any) -> None:
    with pytest.raises(ConfigError, match="no address"):
        RemoteDataZMQ(address)


def test_listening_deletes_no_file(tmp_path: Path) -> None:
    file, link = tmp_path / "precious", tmp_path / "link"
    file.write_text("content")
    link.symlink_to(file)
    for path in (file, link, tmp_path):
        address = f"ipc://{path}"
        with pytest.raises(ConfigError, match="no socket"):
            next(RemoteDataZMQ(address).iterate())
        with pytest.raises(ConfigError, match="no socket"):
            send_dataflow_zmq(DataFromList([(1,)]), address, bind=True)
    assert link.read_text() == "content"


def test_a_socket_that_was_left_behind_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    check_free(f"ipc://{tmp_path}/s")
    for free in ("ipc://@precious", f"ipc://{tmp_path}/none", "ipc://*", "inproc://x"):
        check_free(free)
