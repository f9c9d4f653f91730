"""Threads of ours that the running test has started, and where they are."""

from __future__ import annotations

import sys
import threading
import traceback
import weakref

_before: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def forget_threads() -> None:
    """Counts from here on: what tests before it left, or garbage keeps alive, is not this one's."""
    _before.update(threading.enumerate())


def own_threads() -> list[threading.Thread]:
    ours = ("QueueInput", "ReadAhead", "towerpack")
    return [t for t in threading.enumerate() if t.name.startswith(ours) and t not in _before]


def threads() -> list[str]:
    """Their names and stacks: what a failed assertion prints."""
    frames = sys._current_frames()
    return [
        f"{t.name}:\n{''.join(traceback.format_stack(frames.get(t.ident or 0)))}"
        for t in own_threads()
    ]
