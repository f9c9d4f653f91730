from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from small_host import Param, SmallHost, round_trip
from towerpack import ConfigError
from towerpack.callbacks import HumanHyperParamSetter, ScheduledHyperParamSetter


def host_for(
    tmp_path: Path, human: HumanHyperParamSetter | None = None, **kwargs: Any
) -> SmallHost:
    params = {"learning_rate": Param(0.5), "beta": Param(0.25)}
    return SmallHost(tmp_path, [human or HumanHyperParamSetter()], params=params, **kwargs).start()


def write(host: SmallHost, text: str | bytes) -> None:
    data = text.encode() if isinstance(text, str) else text
    (host.run_dir / "hyper.yaml").write_bytes(data)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    return [message.partition("hyper.yaml: ")[2] for message in found]


def read(host: SmallHost) -> dict[str, float]:
    host.callbacks.callbacks[0].trigger()
    return {name: param.get() for name, param in host.params.items()}


def test_the_file_is_read_before_training_and_at_each_epoch(tmp_path: Path) -> None:
    (tmp_path / "hyper.yaml").write_text("learning_rate: 0.125\n")
    host = host_for(tmp_path)
    assert host.params["learning_rate"].get() == 0.125
    write(host, "learning_rate: 1e-1\nbeta: 0\n")
    assert read(host) == {"learning_rate": pytest.approx(0.1), "beta": 0.0}


@pytest.mark.parametrize("text", [None, "", "# nothing yet\n", "null", "{}"])
def test_nothing_said_is_fine(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    host = host_for(tmp_path)
    if text is not None:
        write(host, text)
    assert read(host) == {"learning_rate": 0.5, "beta": 0.25}
    assert warnings(caplog) == []


# Eight aliases of eight aliases of …: 8^9 ones in a few hundred bytes.
BILLIONS = "a0: &a0 [1]\n"
for i in range(9):
    BILLIONS += f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 8)}]\n"
BILLIONS += "learning_rate: *a9\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("learning_rat: 0.1", "no hyper-parameter is named 'learning_rat'. Did you mean "
         "'learning_rate'?"),
        ("3: 0.1", "no hyper-parameter is named 3. Use one of: 'beta', 'learning_rate'."),
        ("learning_rate: fast", "'learning_rate' must be a finite number, got 'fast'"),
        ("learning_rate: yes", "'learning_rate' must be a finite number, got True"),
        ("learning_rate: .nan", "'learning_rate' must be a finite number, got nan"),
        ("learning_rate: -inf", "'learning_rate' must be a finite number, got '-inf'"),
        ("learning_rate: [0.1]", "'learning_rate' must be a finite number, got [0.1]"),
        ("learning_rate:", "'learning_rate' must be a finite number, got None"),
        ("learning_rate: 1" + "0" * 400, "'learning_rate' must be a finite number, got 1000"),
        ("0.1", "expected lines such as 'learning_rate: 0.001', got 0.1"),
        ("- 0.1", "expected lines such as 'learning_rate: 0.001', got [0.1]"),
        ("learning_rate: [0.1", "the file is not YAML: "),
        ("learning_rate: 1" + "0" * 9000, "the file is not YAML: "),
        ("learning_rate: 2024-99-99", "the file is not YAML: "),
        ("!!python/object/apply:os.system ['true']", "the file is not YAML: could not determine"),
        ("{[1]: 2}", "the file is not YAML: "),
        ("learning_rate: !!bool x", "the file is not YAML: "),
        ("learning_rate: !!timestamp x", "the file is not YAML: "),
        ("learning_rate: 1" + ":59" * 400 + ".5", "the file is not YAML: "),
        ('learning_rate: !!int ""', "the file is not YAML: "),
        ('learning_rate: !!float ""', "the file is not YAML: "),
        (b"\xff\xfe\x00\xd8", "the file is not YAML: "),
        (b"learning_rate: \x00", "the file is not YAML: "),
        (BILLIONS, "the file is not YAML: more than 100,000 values"),
    ],
)  # fmt: skip
def test_whatever_is_wrong_is_a_warning(
    tmp_path: Path, text: str | bytes, complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    host = host_for(tmp_path)
    write(host, text)
    assert read(host) == {"learning_rate": 0.5, "beta": 0.25}
    assert warnings(caplog)[-1].startswith(complaint)
    assert all(len(message) < 500 for message in warnings(caplog))


def test_a_directory_in_its_place_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = host_for(tmp_path)
    (tmp_path / "hyper.yaml").mkdir()
    read(host)
    read(host)
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith("the file cannot be read")


def test_each_version_of_the_file_is_complained_about_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = host_for(tmp_path)
    for text in ("lr: 1", "lr: 1", "lr: 2", "lr: 2"):
        write(host, text)
        read(host)
    assert len(warnings(caplog)) == 2


def test_what_is_right_counts_beside_what_is_wrong(tmp_path: Path) -> None:
    host = host_for(tmp_path)
    write(host, "lr: 0.1\nbeta: no\nlearning_rate: 0.125")
    assert read(host) == {"learning_rate": 0.125, "beta": 0.25}


def test_only_named_parameters_are_touched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    host = host_for(tmp_path, HumanHyperParamSetter("beta"))
    write(host, "learning_rate: 1.0\nbeta: 1.0\n")
    assert read(host) == {"learning_rate": 0.5, "beta": 1.0}
    assert warnings(caplog) == []
    with pytest.raises(ConfigError, match="lr"):
        host_for(tmp_path, HumanHyperParamSetter("lr"))


def test_the_file_holds_as_long_as_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "hyper.yaml").write_text("learning_rate: 0.125")
    schedule = ScheduledHyperParamSetter("learning_rate", [(0, 0.5), (1, 0.25)])
    host = SmallHost(tmp_path, [schedule, HumanHyperParamSetter()]).run()
    assert host.params["learning_rate"].get() == 0.125


def test_a_value_that_the_parameter_refuses_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Whole(Param):
        def set(self, value: float) -> None:
            if value != int(value):
                raise ConfigError("It is an integer.")
            super().set(value)

    host = SmallHost(tmp_path, [HumanHyperParamSetter()], params={"n": Whole(1)}).start()
    write(host, "n: 0.5")
    assert read(host) == {"n": 1.0}
    assert warnings(caplog) == ["'n' cannot be set to 0.5: It is an integer."]


def test_changes_are_kept_for_the_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "towerpack")
    human = HumanHyperParamSetter()
    host = host_for(tmp_path, human)
    host.global_step = 7
    write(host, "learning_rate: 0.125")
    read(host)
    read(host)
    assert human.changes == [[7, "learning_rate", 0.5, 0.125]]
    assert [r.message for r in caplog.records] == [
        "hyper.yaml: learning_rate: 0.5 → 0.125 at step 7."
    ]
    caplog.clear()
    again = HumanHyperParamSetter()
    again.restore(round_trip(human.state()))
    assert again.state() == human.state()
    SmallHost(tmp_path, [again], params={"learning_rate": Param(0.125)}).start()
    assert [r.message for r in caplog.records] == [
        "Earlier change by hand at step 7: learning_rate: 0.5 → 0.125."
    ]
