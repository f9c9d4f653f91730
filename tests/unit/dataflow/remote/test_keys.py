"""Keys in files: who may read them, and what is wrong with them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth

from towerpack import ConfigError
from towerpack.dataflow.remote import generate_keys
from towerpack.dataflow.remote._keys import set_keys


def give(keys: Path, *, bind: bool) -> None:
    """Give a socket keys, and close it."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        door = set_keys(socket, keys, bind=bind)
        if door is not None:
            door.stop()


def test_keys_are_made_and_added_and_nothing_is_overwritten(tmp_path: Path) -> None:
    folder = generate_keys(tmp_path / "new" / "keys")
    for file in folder.glob("*.key_secret"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret, allowed = folder / "client.key_secret", folder / "allowed"
    assert (
        zmq.auth.load_certificate(secret)[0] == zmq.auth.load_certificate(allowed / "client.key")[0]
    )
    assert zmq.auth.load_certificate(folder / "server.key")[1] is None
    for keys, bind in ((folder, True), (folder, False), (secret, False)):
        give(keys, bind=bind)
    before = {file: file.read_bytes() for file in folder.rglob("*.key*")}
    with pytest.raises(ConfigError, match=r"client\.key_secret exists"):
        generate_keys(folder)
    generate_keys(folder, ["one", "two"])
    generate_keys(folder, "gpu")
    assert {file: file.read_bytes() for file in before} == before
    assert sorted(file.stem for file in allowed.iterdir()) == ["client", "gpu", "one", "two"]


@pytest.mark.parametrize("name", ["server", "", "../x", "x" * 65])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a valid name"):
        generate_keys(tmp_path / "keys", [name])
    assert not (tmp_path / "keys").exists()


def test_each_side_needs_its_own_files(tmp_path: Path) -> None:
    folder = generate_keys(tmp_path / "keys", ["gpu", "cpu"])
    with pytest.raises(ConfigError, match="exactly one client's secret key") as caught:
        give(folder, bind=False)
    assert "cpu.key_secret, gpu.key_secret" in str(caught.value)
    os.chmod(folder / "gpu.key_secret", 0o640)
    with pytest.raises(ConfigError, match=r"chmod 600 .*gpu\.key_secret"):
        give(folder / "gpu.key_secret", bind=False)
    (folder / "server.key").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        give(folder / "cpu.key_secret", bind=False)
    for file in (folder / "allowed").iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match="no client could connect"):
        give(folder, bind=True)
    (folder / "server.key_secret").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        give(folder, bind=True)


def test_damaged_files(tmp_path: Path) -> None:
    generate_keys(tmp_path)
    public = 'public-key = "' + "a" * 40 + '"\n'
    wrong = 'public-key = "' + "~" * 40 + '"\nsecret-key = "' + "~" * 40 + '"'
    other = public + 'secret-key = "' + "b" * 40 + '"'
    for content in ("", 'public-key = "short"', wrong, public, other):
        (tmp_path / "client.key_secret").write_text(content)
        with pytest.raises(ConfigError, match=r"cannot be read|no secret key"):
            give(tmp_path, bind=False)
