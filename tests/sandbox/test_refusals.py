"""What would be felt outside is refused, with a short text, and user code may swallow it."""

import _thread
import atexit
import concurrent.futures
import http.client
import multiprocessing
import multiprocessing.pool
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import webbrowser

import pytest

from stayfinite.sandbox import Refused, computing_only

ACTS = {
    "run": (lambda: subprocess.run(["curl", "--token", "secret"]), "a subprocess (curl …)"),
    "popen": (lambda: subprocess.Popen("/usr/bin/curl secret", shell=True), "a subprocess (curl …)"),
    "output": (lambda: subprocess.check_output(["date"]), "a subprocess (date)"),
    "system": (lambda: os.system("date"), "a subprocess (date)"),
    "os_popen": (lambda: os.popen("date"), "a subprocess (date)"),
    "exec": (lambda: os.execvp("/bin/date", ["date"]), "a subprocess (date …)"),
    "spawn": (lambda: os.spawnv(os.P_WAIT, "/bin/date", ["date"]), "a fork"),
    "fork": (lambda: os.fork(), "a fork"),
    "exit": (lambda: os._exit(3), "an exit of the process"),
    "abort": (lambda: os.abort(), "an exit of the process"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGTERM), "a signal"),
    "raise": (lambda: signal.raise_signal(signal.SIGTERM), "a signal"),
    "handler": (lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN), "a signal"),
    "alarm": (lambda: signal.alarm(1), "a signal"),
    "wait": (lambda: os.wait(), "waiting for a child process"),
    "umask": (lambda: os.umask(0), "a change of the process"),
    "thread": (lambda: threading.Thread(target=print).start(), "a new thread (Thread)"),
    "timer": (lambda: threading.Timer(0, print).start(), "a new thread (Timer)"),
    "raw_thread": (lambda: _thread.start_new_thread(print, ()), "a new thread"),
    "process": (lambda: multiprocessing.Process(target=print).start(), "a new process"),
    "pool": (lambda: multiprocessing.pool.ThreadPool(1), "work for another thread or process"),
    "socket": (lambda: socket.socket(), "a network connection"),
    "pair": (lambda: socket.socketpair(), "a network connection"),
    "connect": (
        lambda: socket.create_connection(("example.org", 80)), "a network connection (example.org)",
    ),
    "lookup": (lambda: socket.getaddrinfo("example.org", 80), "a network connection (example.org)"),
    "http": (
        lambda: http.client.HTTPConnection("localhost").request("GET", "/"), "a network connection",
    ),
    "url": (lambda: urllib.request.urlopen("http://localhost/?token=x"), "a network connection"),
    "browser": (lambda: webbrowser.open("http://localhost"), "a browser"),
    "input": (lambda: input("? "), "a question to the user"),
    "stdin": (lambda: sys.stdin.readline(), "reading from stdin"),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTS)
def test_what_would_be_felt_outside_is_refused(name):
    act, text = ACTS[name]
    with computing_only() as report, pytest.raises(Refused, match="is refused during a replay"):
        act()
    assert report.refused == {text: 1}
    assert "secret" not in report.text()


def test_user_code_may_swallow_it():
    with computing_only() as report:
        try:
            subprocess.run(["nvidia-smi"], check=True)
        except Exception:
            value = None
    assert value is None
    assert report.text() == "not done during the replay: a subprocess (nvidia-smi)"


def test_open_connections_and_running_workers_are_left_alone():
    a, b = socket.socketpair()
    left, right = multiprocessing.Pipe()
    with (
        concurrent.futures.ThreadPoolExecutor(1) as pool,
        multiprocessing.pool.ThreadPool(1) as other,
    ):
        assert pool.submit(len, "ab").result() == 2
        with computing_only() as report:
            for act in (
                lambda: a.send(b"x"), lambda: a.sendall(b"x"), lambda: b.recv(1), lambda: a.close(),
                lambda: left.send(1), lambda: right.recv(), lambda: pool.submit(print),
                lambda: other.map(print, [1]),
            ):  # fmt: skip
                with pytest.raises(Refused):
                    act()
        assert sum(report.refused.values()) == 8
        assert pool.submit(len, "ab").result() == 2
    a.sendall(b"heard")
    assert b.recv(9) == b"heard"
    left.send(7)
    assert right.recv() == 7
    for one in (a, b, left, right):
        one.close()
    assert "send" not in vars(socket.socket)


def test_a_queue_of_the_users_is_neither_fed_nor_emptied():
    users = queue.Queue()
    users.put("batch")
    with computing_only():
        for act in (users.get, lambda: users.put(1), users.get_nowait):
            with pytest.raises(Refused, match="a message to another thread"):
                act()
        own = queue.Queue()
        own.put(3)
        assert own.get() == 3
    assert users.qsize() == 1 and users.get() == "batch"


def test_a_replay_does_not_wait_and_does_not_stop_at_a_breakpoint(monkeypatch):
    slept, stopped, registered = [], [], []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(sys, "breakpointhook", lambda *a: stopped.append(1))
    with computing_only() as report:
        time.sleep(1000)
        breakpoint()
        assert atexit.register(registered.append, 1) == registered.append
    assert slept == [] and stopped == []
    assert report.refused == {"a breakpoint": 1}
    time.sleep(1)
    breakpoint()
    assert slept == [1] and stopped == [1]
    atexit.unregister(registered.append)
