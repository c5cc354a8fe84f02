"""Rates, times and losses as people write them: ``1gbit``, ``20ms``, ``0.1%``."""

from __future__ import annotations

import re
from typing import Final

from thinwire.errors import ConfigError

_NUMBER: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-zA-Zµ%/]*)\s*")
_RATES: Final = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_RATE_SPELLINGS: Final = {
    "bps": "bit",
    "kbps": "kbit",
    "mbps": "mbit",
    "gbps": "gbit",
    "kb/s": "kbit",
    "mb/s": "mbit",
    "gb/s": "gbit",
}
_TIMES: Final = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
MIN_RATE: Final = 1e5
MAX_RATE: Final = 25e9
MAX_DELAY: Final = 10.0


def parse_rate(text: str, name: str = "link") -> float:
    """Bits a second; units kbit, mbit, gbit, or kbps, Kb/s and so on. Raises ConfigError naming ``name``."""
    allowed = "a rate from 100kbit to 25gbit, such as 1gbit, 100mbit, 2.5gbit"
    number, unit = _split(text, name, allowed)
    unit = unit.lower()
    unit = _RATE_SPELLINGS.get(unit, unit)
    if unit not in _RATES:
        raise ConfigError(f"{name}={text!r} has no known unit; allowed: {allowed}")
    rate = number * _RATES[unit]
    if not MIN_RATE <= rate <= MAX_RATE:
        raise ConfigError(f"{name}={text!r} is out of range; allowed: {allowed}")
    return rate


def parse_time(text: str, name: str = "delay", most: float = MAX_DELAY) -> float:
    """Seconds; units us, ms, s. Raises ConfigError naming ``name``."""
    allowed = f"a time from 0 to {most:g}s, such as 20ms, 250us, 1s"
    number, unit = _split(text, name, allowed)
    if unit not in _TIMES and number != 0:
        raise ConfigError(f"{name}={text!r} has no known unit; allowed: {allowed}")
    seconds = number * _TIMES.get(unit, 1.0)
    if seconds > most:
        raise ConfigError(f"{name}={text!r} is out of range; allowed: {allowed}")
    return seconds


def parse_loss(text: str, name: str = "loss") -> float:
    """A fraction from ``0.1%`` or ``0.001``. Raises ConfigError naming ``name``."""
    allowed = "a share of packets from 0 to 50%, such as 0.1%"
    number, unit = _split(text, name, allowed)
    if unit not in ("", "%"):
        raise ConfigError(f"{name}={text!r} has no known unit; allowed: {allowed}")
    share = number / 100 if unit else number
    if share > 0.5:
        raise ConfigError(f"{name}={text!r} is out of range; allowed: {allowed}")
    return share


def format_rate(rate: float) -> str:
    """The shortest usual spelling, such as ``2.5gbit``."""
    for unit, factor in reversed(_RATES.items()):
        if rate >= factor:
            return f"{rate / factor:g}{unit}"
    return f"{rate:g}bit"


def format_time(seconds: float) -> str:
    """Such as ``20ms``, ``250us``, ``1.5s``."""
    if seconds >= 1:
        return f"{seconds:g}s"
    return f"{1e3 * seconds:g}ms" if seconds >= 1e-3 or not seconds else f"{1e6 * seconds:g}us"


def _split(text: str, name: str, allowed: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(str(text))
    if match is None:
        raise ConfigError(f"{name}={text!r} is not a number with a unit; allowed: {allowed}")
    return float(match[1]), match[2]
