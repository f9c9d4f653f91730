"""Measurement of training speed and remaining time."""

from __future__ import annotations

import statistics
from collections import deque

_SAMPLES = 50


class Meter:
    """Measures the speed of the steps and estimates the remaining time.

    The speed is the average of the last 50 samples. The estimate uses a longer average, which
    includes evaluations inside epochs, and the median time between epochs.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self._samples: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        self._between: deque[float] = deque(maxlen=5)
        self._ended: float | None = None
        # Sums of the longer average; `restart` halves them. The first interval is skipped, because
        # it includes TensorFlow's warm-up.
        self._seconds = self._steps = 0.0
        self._warm = False

    def restart(self, now: float, step: int) -> None:
        self._samples.clear()
        self._samples.append((now, step))
        self._seconds, self._steps = self._seconds / 2, self._steps / 2
        if self._ended is not None:
            self._between.append(now - self._ended)
            self._ended = None

    def sample(self, now: float, step: int) -> None:
        last = self._samples[-1]
        if self._warm:
            self._seconds += now - last[0]
            self._steps += step - last[1]
        self._warm = True
        self._samples.append((now, step))
        first = self._samples[0]
        if step > first[1] and now > first[0]:
            self.rate = (step - first[1]) / (now - first[0])

    def end(self, now: float, step: int) -> None:
        self.sample(now, step)
        self._ended = now

    def left(self, steps: int, ends: int = 0) -> float | None:
        """Return the estimated seconds for `steps` steps and `ends` ends of epochs, or None."""
        if self.rate is None:
            return None
        seconds_per_step = self._seconds / self._steps if self._steps else 1 / self.rate
        between = statistics.median(self._between) if self._between else 0.0
        return steps * seconds_per_step + ends * between


def clock_text(seconds: float) -> str:
    """Format a duration in seconds: `0:07`, `12:30`, `1:02:03` or `2 d 1:02:03`."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours}:{minutes:02}:{secs:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def speed_text(rate: float | None, unit: str = "step") -> str:
    """Format a speed: `38.2 steps/s`, or `2.31 s/step` for less than one step per second."""
    if not rate:
        return f"- {unit}s/s"
    if rate < 1:
        return f"{1 / rate:.3g} s/{unit}"
    return f"{rate:,.0f} {unit}s/s" if rate >= 100 else f"{rate:.3g} {unit}s/s"
