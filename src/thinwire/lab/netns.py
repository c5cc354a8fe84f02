"""Namespaces, devices and queues: the only file that changes the machine's network, and only in namespaces it made.

Namespaces have no name and no file: they end with the last process in them, and their devices with them. So nothing can be
left behind, whatever ends a lab.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute

from thinwire.errors import ConfigError
from thinwire.lab.shape import Bucket, down, up
from thinwire.lab.topology import Link, Topology
from thinwire.lab.units import format_time

NEW_NET: Final = 0x40000000
_MS_REC_PRIVATE: Final = 0x4000 | 0x40000
_LEAST_DELAY: Final = 2e-4
_MS_BIND: Final = 0x1000
_MS_SAFE: Final = 0x2 | 0x4 | 0x8  # no set-user-id, no devices, no programs: what a mount of /proc has
_TUN: Final = "/dev/net/tun"
_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_TUN_FLAGS: Final = 0x0001 | 0x1000 | 0x4000  # IFF_TUN, IFF_NO_PI, IFF_VNET_HDR
_TUN_OFFLOAD: Final = 0x01 | 0x02  # checksums, TCP/IPv4 segmentation
_TCP_SETTINGS: Final = ("tcp_congestion_control", "tcp_rmem", "tcp_wmem")
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Raises OSError."""
    if _libc.unshare(flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def enter(namespace: int) -> None:
    """Move this thread into a network namespace, given an open file of it. Raises OSError."""
    if _libc.setns(namespace, NEW_NET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount_proc() -> None:
    """A /proc that shows this PID namespace. Where a container's policy forbids it, the old one stays, which only lists more."""
    if _libc.mount(None, b"/", None, _MS_REC_PRIVATE, None) == 0:
        _libc.mount(b"proc", b"/proc", b"proc", _MS_SAFE, None)


def name_hosts(topology: Topology) -> None:
    """An /etc/hosts with ``host0``, ``host1`` and so on, seen in here only: there is no name server to ask, and torch asks."""
    places = [(topology.address(host), f"host{host}") for host in range(topology.num_hosts)]
    # torch's sockets are IPv6, where the others' addresses look like this.
    lines = [f"{prefix}{address} {name}" for prefix in ("", "::ffff:") for address, name in places]
    with tempfile.NamedTemporaryFile("w", prefix="thinwire-", suffix=".hosts") as file, contextlib.suppress(OSError):
        file.write("127.0.0.1 localhost\n::1 localhost\n" + "\n".join(lines) + "\n")
        file.flush()
        os.chmod(file.name, 0o644)
        _libc.mount(file.name.encode(), b"/etc/hosts", None, _MS_BIND, None)


class Network:
    """The hosts' namespaces and links of one topology. Made by the process that will be their switch."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._mtu, self._timed = topology.mtu, False
        self.namespaces: list[int] = []
        self.devices: list[int] = []
        """TUN file descriptors by host, if the relay is to move packets; else empty."""
        self.how = "rate"
        hub = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        for _ in range(topology.num_hosts):
            unshare(NEW_NET)
            self.namespaces.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        enter(hub)
        self._hub = hub
        if not topology.shaped_in_time:
            self._join_by_bridge(None)
        elif has_netem():
            self.how = "netem"
            self._join_by_bridge(topology.first_link)
        else:
            self.how = "relay"
            _check_delays(topology)
            self._join_by_tun()

    def facts(self) -> dict[str, Any]:
        """How links are shaped, and what matters of the machine."""
        settings = {name: Path(f"/proc/sys/net/ipv4/{name}").read_text().split() for name in _TCP_SETTINGS}
        tcp = ", ".join(f"{name} {' '.join(values)}" for name, values in settings.items())
        inner = Path("/proc/self/uid_map").read_text().split()[2] == "1"
        return {"how": self.how, "netem": has_netem(), "user_namespace": inner, "tcp": tcp}

    def change(self, link: Link) -> None:
        """All links are ``link`` from now on. The relay is told by its owner."""
        for host, namespace in enumerate(self.namespaces):
            with _inside(namespace, self._hub), IPRoute() as route:
                _shape(route, "eth0", up(link, self._mtu, self._topology.burst), "change")
            if not self.devices:
                with IPRoute() as route:
                    self._shape_port(route, f"port{host}", link, "change")

    def _join_by_bridge(self, timed: Link | None) -> None:
        link = self._topology.first_link
        self._timed = timed is not None
        with IPRoute() as route:
            _up(route, "lo")
            route.link("add", ifname="switch", kind="bridge")
            _up(route, "switch", mtu=self._mtu)
            bridge = _index(route, "switch")
            for host, namespace in enumerate(self.namespaces):
                peer = {"ifname": "eth0", "net_ns_fd": namespace}
                route.link("add", ifname=f"port{host}", kind="veth", peer=peer)
                _up(
                    route,
                    f"port{host}",
                    mtu=self._mtu,
                    master=bridge,
                    gso_max_size=down(link, self._mtu, self._topology.burst).gso,
                )
                self._shape_port(route, f"port{host}", link, "add")
        for host, namespace in enumerate(self.namespaces):
            with _inside(namespace, self._hub):
                self._configure_host(host, link)

    def _join_by_tun(self) -> None:
        for host, namespace in enumerate(self.namespaces):
            with _inside(namespace, self._hub):
                self.devices.append(_tun("eth0"))
                self._configure_host(host, self._topology.first_link)

    def _configure_host(self, host: int, link: Link) -> None:
        with IPRoute() as route:
            _up(route, "lo")
            route.addr("add", index=_index(route, "eth0"), address=self._topology.address(host), prefixlen=24)
            bucket = up(link, self._mtu, self._topology.burst)
            with contextlib.suppress(OSError):  # else duplicate address detection talks on the link at the start
                Path("/proc/sys/net/ipv6/conf/eth0/disable_ipv6").write_text("1")
            _up(route, "eth0", mtu=self._mtu, gso_max_size=bucket.gso)
            _shape(route, "eth0", bucket, "add")

    def _shape_port(self, route: IPRoute, name: str, link: Link, verb: str) -> None:
        bucket = down(link, self._mtu, self._topology.burst)
        if not self._timed:
            _shape(route, name, bucket, verb)
            return
        route.tc(verb, kind="netem", index=_index(route, name), handle=0x10000, **netem(link, self._mtu))
        _shape(route, name, bucket, verb, parent=0x10001, handle=0x20000)


def _check_delays(topology: Topology) -> None:
    short = [
        link.delay for link in (topology.first_link, *(one.link for one in topology.changes)) if 0 < link.delay < _LEAST_DELAY
    ]
    if short:
        raise ConfigError(
            f"delay={format_time(short[0])} cannot be had here: this kernel has no netem, and a packet's way through the relay "
            f"takes about 100us by itself; allowed: 0, or {format_time(_LEAST_DELAY)} and more"
        )


def netem(link: Link, mtu: int) -> dict[str, Any]:
    """netem's parameters: microseconds, percent, and a queue in packets that holds the delay times the rate twice."""
    held = link.rate / 8 * (link.delay + link.jitter) / mtu
    return {
        "delay": round(link.delay * 1e6),
        "jitter": round(link.jitter * 1e6),
        "loss": 100 * link.loss,
        "limit": int(1000 + 2 * held),
    }


def has_netem() -> bool:
    """Whether this kernel has netem, tried on the loopback device of the current, throw-away namespace."""
    with IPRoute() as route:
        index = _index(route, "lo")
        try:
            route.tc("add", kind="netem", index=index, handle=0x10000, delay=1000)
        except Exception:  # netlink says ENOENT for an unknown queue, as an error class of pyroute2's own
            return False
        route.tc("del", index=index, handle=0x10000)
        return True


class _inside:
    """This thread in another network namespace for a while."""

    def __init__(self, namespace: int, back: int) -> None:
        self._namespace, self._back = namespace, back

    def __enter__(self) -> None:
        enter(self._namespace)

    def __exit__(self, *_: object) -> None:
        enter(self._back)


def _tun(name: str) -> int:
    try:
        device = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"{_TUN} cannot be opened ({error.strerror}); delay, jitter and loss need it on a kernel without netem: "
            f"run as root, or chmod 666 {_TUN}, or modprobe tun, or ask for a rate alone"
        ) from None
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_FLAGS))
    fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_OFFLOAD)
    return device


def _index(route: IPRoute, name: str) -> int:
    found: Iterable[int] = route.link_lookup(ifname=name)
    return next(iter(found))


def _up(route: IPRoute, name: str, **settings: Any) -> None:
    route.link("set", index=_index(route, name), state="up", **settings)


def _shape(route: IPRoute, name: str, bucket: Bucket, verb: str, **place: int) -> None:
    sizes = {"rate": bucket.rate, "burst": bucket.burst, "limit": bucket.limit}
    route.tc(verb, kind="tbf", index=_index(route, name), **(place or {"handle": 0x10000}), **sizes)
