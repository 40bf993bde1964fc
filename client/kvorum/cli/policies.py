"""Policies of queues, and durations, as the command line shows them."""

from datetime import timedelta
from typing import Final

import kvorum

MILLISECOND: Final = timedelta(milliseconds=1)


def shown_duration(duration: timedelta) -> str:
    """A duration for people, as it may be typed."""
    milli = duration // MILLISECOND
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)):
        if milli >= size and milli % size == 0:
            return f"{milli // size}{unit}"
    return f"{milli / 1_000:g}s" if milli >= 1_000 else f"{milli}ms"


def policy_json(policy: kvorum.QueuePolicy) -> dict[str, object]:
    """What a policy says, as JSON data; what it leaves to the defaults is left out."""
    data: dict[str, object] = {}
    for name, value in vars(policy).items():
        if value is None or value is False:
            continue
        if isinstance(value, timedelta):
            data[f"{name}_ms"] = value // MILLISECOND
        elif isinstance(value, tuple):
            data[f"{name}_ms"] = [step // MILLISECOND for step in value]
        elif isinstance(value, kvorum.Exponential):
            data["exponential"] = {
                "base_ms": _milliseconds(value.base),
                "factor": value.factor,
                "cap_ms": _milliseconds(value.cap),
                "jitter": value.jitter,
            }
        else:
            data[name] = value
    return data


def _milliseconds(duration: timedelta | int | float) -> int:
    return duration // MILLISECOND if isinstance(duration, timedelta) else int(duration)


def shown_policy(policy: kvorum.QueuePolicy) -> str:
    """A policy as the options that make it; empty: all is by default."""
    words = []
    for name, value in vars(policy).items():
        option = f"--{name.replace('_', '-')}"
        if value is None or value is False or value == "queue":
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, timedelta):
            words.append(f"{option} {shown_duration(value)}")
        elif isinstance(value, tuple):
            words.append(f"{option} {','.join(map(shown_duration, value))}")
        elif isinstance(value, kvorum.Exponential):
            base, cap = (shown_duration(timedelta(milliseconds=_milliseconds(one))) for one in (value.base, value.cap))
            words.append(f"--exponential {base},{cap}")
        else:
            words.append(f"{'--dead-letters' if name == 'dead_letter_queue' else option} {value}")
    return " ".join(words)
