"""What this machine offers to a lab, tried rather than looked up."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import Any

from thinwire.errors import ConfigError
from thinwire.lab.probe import measure
from thinwire.lab.run import Event, LabError, run
from thinwire.lab.topology import Link, Topology, link


def check(seconds: float = 2.5) -> Iterator[dict[str, Any]]:
    """Rows of ``what``, ``works`` and ``detail``; the last two measure a link against what was asked of it."""
    yield {"what": "kernel", "works": platform.system() == "Linux", "detail": f"{platform.system()} {platform.release()}"}
    plain, timed = link("1gbit"), link("1gbit", delay="10ms")
    facts = _facts(plain)
    if isinstance(facts, str):
        yield {"what": "namespaces and links with a rate", "works": False, "detail": facts}
        return
    user = "inside a user namespace" if facts["user_namespace"] else "as root"
    yield {"what": "namespaces and links with a rate", "works": True, "detail": user}
    yield {"what": "netem", "works": facts["netem"], "detail": "the kernel's" if facts["netem"] else "not in this kernel"}
    late = _facts(timed)
    how = late if isinstance(late, str) else f"by {'netem' if late['how'] == 'netem' else 'our relay over TUN'}"
    yield {"what": "delay, jitter, loss", "works": not isinstance(late, str), "detail": how}
    yield {"what": "TCP", "works": True, "detail": f"{facts['tcp']}; the lab's hosts have this machine's settings"}
    yield _measured("1gbit", plain, seconds)
    fastest = measure(Topology(ranks=2, link=link("25gbit")), seconds, streams=4)["rate"]
    yield {
        "what": "fastest link",
        "works": True,
        "detail": f"{fastest / 1e9:.1f} Gb/s each way at once, and no more",
    }
    if not isinstance(late, str):
        yield _measured("1gbit, delay 10ms (round trip 20 ms)", timed, seconds)


def _facts(one: Link) -> Event | str:
    """The lab's own account of itself, or why there is none."""
    started: list[Event] = []
    try:
        run(Topology(ranks=2, link=one), ["true"], on_event=lambda e: started.append(e) if e["event"] == "started" else None)
    except (ConfigError, LabError) as error:
        return str(error)
    return started[0]


def _measured(what: str, asked: Link, seconds: float) -> dict[str, Any]:
    try:
        found = measure(Topology(ranks=2, link=asked), seconds, streams=4)
    except (ConfigError, LabError) as error:
        return {"what": what, "works": False, "detail": str(error)}
    rate, trip = found["rate"], found["round_trip"]
    good = abs(rate / asked.rate - 1) <= 0.05 and (not asked.delay or abs(trip / (2 * asked.delay) - 1) <= 0.1)
    return {"what": what, "works": good, "detail": f"{rate / 1e6:.0f} Mb/s each way at once, round trip {1e3 * trip:.2f} ms"}
