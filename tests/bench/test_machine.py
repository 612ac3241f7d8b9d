"""What a process and its children cost, against what the kernel tells in other ways."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from paceline.bench.machine import Meter, listener, tree

BURN = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
held = bytearray(b"x") * (64 << 20)
while sum(os.times()[:2]) < 0.3: pass
print(child.pid, sum(os.times()[:2]), flush=True)
input()
child.kill(); child.wait()
"""


@pytest.fixture
def burner():
    """A process that has used a known CPU time, holds 64 MiB, and has a child."""
    with subprocess.Popen(
        [sys.executable, "-c", BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        child, spent = process.stdout.readline().split()
        yield process, int(child), float(spent)
        process.stdin.write("\n")
        process.stdin.close()


def test_a_tree_and_what_it_used(burner):
    process, child, spent = burner
    assert tree(process.pid) == [process.pid, child]
    assert child in tree(os.getpid())
    meter = Meter(process.pid)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert meter.cpu_seconds() >= spent - 2 * tick
    own = sum(os.times()[:4])
    assert Meter(os.getpid()).cpu_seconds() >= own + spent - 5 * tick, "children count too"
    assert (64 << 20) < meter.peak_bytes() < (1 << 30)


def test_a_process_that_has_ended_is_said_so():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    with pytest.raises(ProcessLookupError, match=f"process {process.pid} has ended"):
        Meter(process.pid).cpu_seconds()


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_who_listens_on_a_port(family):
    host = "127.0.0.1" if family == socket.AF_INET else "::1"
    with socket.socket(family) as server:
        try:
            server.bind((host, 0))
        except OSError:
            pytest.skip("no IPv6 here")
        port = server.getsockname()[1]
        assert listener(port) is None, "bound is not listening"
        server.listen()
        assert listener(port) == os.getpid()
        with socket.create_connection((host, port)) as client:
            assert listener(client.getsockname()[1]) is None, "a client does not listen"
