"""Starts a lab's supervisor as the first process of new namespaces. Run by its path, with the standard library alone: a user
namespace can be made only by a process with one thread, and NumPy starts some.

Arguments: the file descriptor for events, and the command that is the supervisor. Exits as it does.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import signal
import sys
from typing import Final

_NEW_USER: Final = 0x10000000
_NEW: Final = 0x40000000 | 0x00020000 | 0x20000000  # network, mounts, process ids
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    events, command = int(sys.argv[1]), sys.argv[2:]
    problem = isolate()
    if problem:
        os.write(events, json.dumps({"event": "error", "message": problem}).encode() + b"\n")
        sys.exit(2)
    child = os.fork()
    if not child:
        # The first process of a PID namespace: when it ends, the kernel ends all others in there.
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.execv(command[0], command)
    os.close(0)
    os.close(events)
    _, status = os.waitpid(child, 0)
    sys.exit(max(0, os.waitstatus_to_exitcode(status)))


def isolate() -> str | None:
    """New namespaces for this process's children; an ordinary user gets a user namespace around them. Returns what went wrong."""
    if not _libc.unshare(_NEW):
        return None
    error = ctypes.get_errno()
    if error != errno.EPERM:
        return f"no namespaces: {os.strerror(error)}; the lab needs a Linux kernel with network and PID namespaces"
    user, group = os.getuid(), os.getgid()
    try:
        if _libc.unshare(_NEW | _NEW_USER):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as problem:
        return (
            f"no permission for namespaces ({problem.strerror}); run as root, or allow user namespaces: "
            "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone=1, "
            "kernel.apparmor_restrict_unprivileged_userns=0; "
            "in a container: --cap-add SYS_ADMIN --cap-add NET_ADMIN --device /dev/net/tun"
        )
    return None


if __name__ == "__main__":
    main()
