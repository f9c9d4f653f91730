"""Tables and JSON objects that describe checkpoints."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

from towerpack.cli._console import escape, table
from towerpack.cli._machine import size_text

if TYPE_CHECKING:
    from towerpack.checkpoint import CheckpointRow

_RECENT_S: Final = 2 * 86400


def checkpoint_table(rows: list[CheckpointRow], checked: bool) -> Table:
    listing = table(">step", "tag", ">size", "saved", "info", "state")
    for row in rows:
        state = ("[green]valid" if checked else "[green]whole") if row.valid else "[red]damaged: "
        listing.add_row(
            f"{row.step:,}",
            escape(row.tag or ""),
            size_text(row.nbytes),
            time_text(row.saved_at, short=True),
            escape(info_text(row.info)),
            state + escape(row.problem or ""),
        )
    return listing


def checkpoint_as_json(row: CheckpointRow) -> dict[str, Any]:
    names = ("step", "tag", "nbytes", "saved_at", "valid", "problem")
    return {
        **{name: getattr(row, name) for name in names},
        "path": str(row.path),
        "info": dict(row.info),
    }


def info_text(info: Mapping[str, Any]) -> str:
    """Return the information stored with a checkpoint, such as its best metric, as one line."""
    # BestSaver stores {'best': [{'name': 'val/error', 'value': 0.18}]}, or one item with a tag.
    best = info.get("best") or ([info] if {*info} == {"name", "value"} else [])
    items = {item["name"]: item["value"] for item in best} if best else info
    return ", ".join(f"{name} {brief(value)}" for name, value in items.items())


def brief(value: Any, limit: int = 40) -> str:
    """Convert a value to text of at most `limit` characters."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = " ".join((value if isinstance(value, str) else repr(value)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def time_text(saved_at: float | None, *, short: bool = False) -> str:
    """Return a time and its age, such as "(3 h ago)", with Rich's markup. `short`: one of them."""
    if saved_at is None:
        return ""
    try:
        moment = datetime.datetime.fromtimestamp(saved_at).astimezone()
    except (ValueError, OverflowError, OSError):
        return f"{saved_at:g}"
    age = time.time() - saved_at
    if short:
        return _age(age) if 0 <= age < _RECENT_S else f"{moment:%Y-%m-%d %H:%M}"
    return f"{moment:%Y-%m-%d %H:%M:%S} [dim]({_age(age)})"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now" if seconds >= 0 else "in the future"
