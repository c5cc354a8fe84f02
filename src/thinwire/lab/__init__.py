"""A cluster on one machine: hosts are network namespaces, links have a rate, a delay and losses, and any command runs on them.

from thinwire import lab
lab.run(lab.Topology(ranks=4, link=lab.link("1gbit", delay="20ms")), ["python", "train.py"])
"""

from thinwire.lab.run import LabError, Result, run
from thinwire.lab.topology import Change, Link, Topology, link, schedule

__all__ = ["Change", "LabError", "Link", "Result", "Topology", "link", "run", "schedule"]
