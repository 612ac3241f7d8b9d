"""What processes cost: CPU time and peak memory of a server and all its children, from `/proc`.

A library would do it too, but none tells the peak that the kernel keeps; three files do. Linux
only, and processes of one's own user. Used by `points` and `compare`.
"""

from __future__ import annotations

import os
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_LISTENS = "0A"


class Cost(msgspec.Struct, frozen=True):
    """cores: CPU seconds by seconds passed. peak_bytes: the most memory that each process has held
    since it began, summed; pages that processes share are counted once for each."""

    cores: float
    peak_bytes: int


class Meter:
    """Measures the process `pid` and its descendants."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def cpu_seconds(self) -> float:
        """CPU time so far, of ended children too. Raises ProcessLookupError once it has gone."""
        if not (_PROC / str(self.pid)).exists():
            raise ProcessLookupError(f"process {self.pid} has ended")
        return sum(map(_cpu_seconds, tree(self.pid)))

    def peak_bytes(self) -> int:
        return sum(map(_peak_bytes, tree(self.pid)))


def tree(pid: int) -> list[int]:
    """A process and its descendants, as far as they still run."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children[parent]
    return found


def listener(port: int) -> int | None:
    """The process that listens on a TCP port of this machine, if it can be seen."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not sockets:
        return None
    pids = sorted(int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())
    return next((pid for pid in pids if sockets & _open_files(pid)), None)


def _inodes(port: int) -> set[str]:
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):
            for line in (_PROC / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(PermissionError, FileNotFoundError):
        for entry in (_PROC / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(os.readlink(entry))
    return found


def _stat(pid: int) -> list[str]:
    """Fields of `stat` from the third on (state, parent, …); empty for a process that has gone."""
    with suppress(FileNotFoundError, ProcessLookupError):
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
        return text.rpartition(")")[2].split()  # the name before it may hold anything
    return []


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    ticks = sum(map(int, fields[11:15]))  # user, system, and both of children that were waited for
    return ticks / os.sysconf("SC_CLK_TCK")


def _peak_bytes(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in (_PROC / str(pid) / "status").read_text(errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
