"""What a lab is: hosts, their links, the ranks on them, and when the links change. Arithmetic only.

Every host hangs on one switch by a link of its own, like machines in a rack or sites on a backbone:

    host 0 ==link== switch ==link== host 1        each link: ``rate`` up and ``rate`` down, at the same time
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from thinwire.errors import ConfigError
from thinwire.lab.units import format_rate, format_time, parse_loss, parse_rate, parse_time

MTU: Final = 9000
BURST: Final = 2e-3
PRECISE_BURST: Final = 1e-3
NETWORK: Final = "10.111.0"
MASTER_PORT: Final = 29500
MAX_HOSTS: Final = 64
MAX_SCHEDULE: Final = 7 * 86400.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Link:
    """A host's link. ``delay`` is one way between two hosts, so a round trip takes twice that; ``jitter`` spreads it evenly
    by so much to both sides, without reordering; ``loss`` is the share of packets that are lost on their way to a host."""

    rate: float
    """Bits a second, each way, Ethernet and IP headers included as on a real link."""
    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        if self.jitter > self.delay:
            raise ConfigError(
                f"jitter={format_time(self.jitter)} is more than the delay; allowed: 0 to delay={format_time(self.delay)}"
            )

    @property
    def shaped_in_time(self) -> bool:
        """Whether it needs more than a rate."""
        return self.delay > 0 or self.loss > 0

    def __str__(self) -> str:
        parts = [format_rate(self.rate)]
        if self.delay:
            parts.append(f"round trip {format_time(2 * self.delay)}")
        if self.jitter:
            parts.append(f"jitter {format_time(self.jitter)}")
        if self.loss:
            parts.append(f"loss {100 * self.loss:g}%")
        return ", ".join(parts)


def link(rate: str, delay: str = "0", jitter: str = "0", loss: str = "0") -> Link:
    """A link from texts such as ``"1gbit"``, ``"20ms"``, ``"0.1%"``. Raises ConfigError."""
    return Link(rate=parse_rate(rate), delay=parse_time(delay), jitter=parse_time(jitter, "jitter"), loss=parse_loss(loss))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """From ``at`` seconds after the start, all links are ``link``."""

    at: float
    link: Link


def schedule(text: str, base: Link) -> tuple[Change, ...]:
    """``"0s:1gbit/1ms,30s:100mbit/250ms"``: times, rates and, after a slash, delays; what is not said is as in ``base``.

    Raises ConfigError for anything else, and for times that do not rise.
    """
    changes: list[Change] = []
    for part in text.split(","):
        when, colon, what = part.partition(":")
        if not colon:
            raise ConfigError(
                f"schedule={text!r}: {part!r} has no colon; allowed: TIME:RATE or TIME:RATE/DELAY, separated by commas"
            )
        at = parse_time(when, "schedule", MAX_SCHEDULE)
        if changes and at <= changes[-1].at:
            raise ConfigError(f"schedule={text!r}: {when.strip()} does not come after the one before; allowed: rising times")
        rate, slash, delay = what.partition("/")
        seconds = parse_time(delay, "schedule") if slash else base.delay
        jitter = min(base.jitter, seconds)
        changes.append(Change(at=at, link=Link(rate=parse_rate(rate, "schedule"), delay=seconds, jitter=jitter, loss=base.loss)))
    return tuple(changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Topology:
    """``ranks`` processes on ``hosts`` machines. Raises ConfigError if ranks cannot be spread evenly."""

    ranks: int
    link: Link
    hosts: int | None = None
    """None: one a rank."""
    changes: tuple[Change, ...] = ()
    mtu: int = MTU
    burst: float = BURST
    """Seconds of the rate that pass at once after a pause, at least one packet. A machine that stalls for longer loses
    rate; benchmarks take less (PRECISE_BURST), since pauses of a sender must not be made good."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ConfigError(f"ranks={self.ranks} is out of range; allowed: 1 or more")
        if not 1 <= self.num_hosts <= MAX_HOSTS:
            raise ConfigError(f"hosts={self.num_hosts} is out of range; allowed: 1 to {MAX_HOSTS} (one a rank if not given)")
        if self.ranks % self.num_hosts:
            fitting = ", ".join(str(n) for n in range(1, min(self.ranks, MAX_HOSTS) + 1) if self.ranks % n == 0)
            raise ConfigError(
                f"ranks={self.ranks} on hosts={self.num_hosts} leaves hosts with fewer ranks; allowed here: hosts of {fitting}"
            )
        if not 1280 <= self.mtu <= 65000:
            raise ConfigError(f"mtu={self.mtu} is out of range; allowed: 1280 to 65000")
        if not 1e-5 <= self.burst <= 0.1:
            raise ConfigError(f"burst={format_time(self.burst)} is out of range; allowed: 10us to 100ms")

    @property
    def num_hosts(self) -> int:
        return self.ranks if self.hosts is None else self.hosts

    @property
    def ranks_per_host(self) -> int:
        return self.ranks // self.num_hosts

    @property
    def first_link(self) -> Link:
        """What the links are when the ranks start."""
        return self.changes[0].link if self.changes and self.changes[0].at == 0 else self.link

    @property
    def shaped_in_time(self) -> bool:
        """Whether any link at any time needs more than a rate."""
        return self.link.shaped_in_time or any(change.link.shaped_in_time for change in self.changes)

    def host_of(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def address(self, host: int) -> str:
        return f"{NETWORK}.{host + 1}"

    def environment(self, rank: int) -> dict[str, str]:
        """What torch.distributed's ``env://`` and torchrun's users read, for one rank."""
        host = self.host_of(rank)
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_RANK": str(rank % self.ranks_per_host),
            "LOCAL_WORLD_SIZE": str(self.ranks_per_host),
            "GROUP_RANK": str(host),
            "GROUP_WORLD_SIZE": str(self.num_hosts),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(MASTER_PORT),
            "GLOO_SOCKET_IFNAME": "eth0",
            "NCCL_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
            "THINWIRE_LAB_RANK": str(rank),
        }

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def from_dict(values: Mapping[str, Any]) -> Topology:
    """The inverse of :meth:`Topology.as_dict`."""
    changes = tuple(Change(at=one["at"], link=Link(**one["link"])) for one in values["changes"])
    rest = {name: values[name] for name in ("ranks", "hosts", "mtu", "burst")}
    return Topology(link=Link(**values["link"]), changes=changes, **rest)
