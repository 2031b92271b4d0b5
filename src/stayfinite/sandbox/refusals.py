"""Refuses actions of a replay with effects outside the process or after the step."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .box import Box, Rule, only_here

__all__ = ["RULES"]


def _refuse(what: str) -> Any:
    return only_here(lambda box, original, args, kwargs: box.refuse(what))


def _refuse_as(describe: Callable[..., str]) -> Any:
    return only_here(lambda box, original, args, kwargs: box.refuse(describe(*args, **kwargs)))


def _program(args: Any) -> str:
    """The name of a program; its arguments may contain a secret."""
    words = args.split() if isinstance(args, str) else [args] if _is_path(args) else list(args)
    if not words:
        return "a subprocess"
    name = os.path.basename(os.fsdecode(words[0]))
    return f"a subprocess ({name} …)" if len(words) > 1 else f"a subprocess ({name})"


def _is_path(value: Any) -> bool:
    return isinstance(value, (bytes, os.PathLike))


def _popen(this: Any, args: Any = (), *rest: Any, **kwargs: Any) -> str:
    return _program(args)


def _command(command: Any = (), *rest: Any, **kwargs: Any) -> str:
    return _program(command)


def _executed(path: Any = (), *rest: Any, **kwargs: Any) -> str:
    return _program([path, "…"])


def _host(address: Any) -> str:
    host = address[0] if isinstance(address, tuple) and address else address
    text = host.decode(errors="replace") if isinstance(host, bytes) else host
    return f"a network connection ({text})" if isinstance(text, str) else "a network connection"


def _looked_up(host: Any = None, *rest: Any, **kwargs: Any) -> str:
    return _host(host)


def _connected(this: Any, address: Any = None, *rest: Any) -> str:
    return _host(address)


def _started(this: Any, *args: Any, **kwargs: Any) -> str:
    return f"a new thread ({type(this).__name__})"


def _sleep(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    """Skip waiting in a replay."""
    box.count_wait()


def _nothing(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    return args[0] if args else None


def _breakpoint(box: Box, original: Any, args: Any, kwargs: Any) -> None:
    box.report.add("a breakpoint")


def _made_queue(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    box.own_queues.add(id(args[0]))
    return original(*args, **kwargs)


def _queue(what: str) -> Any:
    def act(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
        if id(args[0]) not in box.own_queues:
            box.refuse(what)
        return original(*args, **kwargs)

    return only_here(act)


def _new_pool(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    args[0]._state = "TERMINATE"  # its finalizer reads it
    return box.refuse("work for another thread or process")


def _environ(box: Box, original: Any, args: Any, kwargs: Any) -> Any:
    """Set it for all threads, as the code requests, and note it for the restore at the end."""
    environ, key = args[0], args[1]
    if environ is os.environ and isinstance(key, str):
        box.environ.setdefault(key, environ.get(key))
    return original(*args, **kwargs)


def _rules(module: str, names: str, make: Any, reason: str) -> list[Rule]:
    return [Rule(module, name, make, reason) for name in names.split()]


_PROCESS = "a replay starts, ends and signals nothing"
_NETWORK = "a replay talks to nobody"
_WAIT = "a replay waits for nobody"
_network = _refuse("a network connection")
_worker = _refuse("work for another thread or process")
_signal = _refuse("a signal")
_files_of_others = _refuse("a message to another process")

RULES: tuple[Rule, ...] = (
    *_rules("subprocess", "Popen.__init__", _refuse_as(_popen), _PROCESS),
    *_rules("os", "system popen", _refuse_as(_command), _PROCESS),
    *_rules("os", "execv execve posix_spawn posix_spawnp startfile", _refuse_as(_executed), _PROCESS),
    *_rules("os", "fork forkpty", _refuse("a fork"), _PROCESS),
    *_rules("os", "_exit abort", _refuse("an exit of the process"), _PROCESS),
    *_rules("os", "kill killpg", _signal, _PROCESS),
    *_rules("os", "wait wait3 wait4 waitpid waitid", _refuse("waiting for a child process"), _PROCESS),
    *_rules("os", "nice umask sched_setaffinity setpriority setsid setpgid setuid setgid",
            _refuse("a change of the process"), _PROCESS),
    *_rules("signal", "signal alarm setitimer raise_signal pthread_kill pthread_sigmask set_wakeup_fd "
            "siginterrupt", _signal, _PROCESS),
    *_rules("resource", "setrlimit", _refuse("a change of the process"), _PROCESS),
    *_rules("multiprocessing.process", "BaseProcess.start", _refuse("a new process"), _PROCESS),
    *_rules("multiprocessing.pool", "Pool._check_running", _worker, _PROCESS),
    *_rules("multiprocessing.pool", "Pool.__init__", only_here(_new_pool), _PROCESS),
    *_rules("multiprocessing.connection", "_ConnectionBase.send _ConnectionBase.send_bytes "
            "_ConnectionBase.recv _ConnectionBase.recv_bytes _ConnectionBase.recv_bytes_into",
            _files_of_others, _PROCESS),
    *_rules("concurrent.futures.thread", "ThreadPoolExecutor.submit", _worker, _PROCESS),
    *_rules("concurrent.futures.process", "ProcessPoolExecutor.submit", _worker, _PROCESS),
    *_rules("threading", "Thread.start", _refuse_as(_started), _PROCESS),
    *_rules("threading", "_start_new_thread", _refuse("a new thread"), _PROCESS),
    *_rules("_thread", "start_new_thread", _refuse("a new thread"), _PROCESS),
    *_rules("queue", "Queue.__init__", only_here(_made_queue), _PROCESS),
    *_rules("queue", "Queue.put Queue.get", _queue("a message to another thread"), _PROCESS),
    *_rules("socket", "socket.connect socket.connect_ex", _refuse_as(_connected), _NETWORK),
    *_rules("socket", "socket.__init__ socket.send socket.sendall socket.sendto socket.sendmsg socket.recv "
            "socket.recv_into socket.recvfrom socket.recvfrom_into socket.recvmsg socket.accept socket.bind "
            "socket.listen socket.sendfile socket.shutdown socket.close", _network, _NETWORK),
    *_rules("ssl", "SSLSocket.send SSLSocket.sendall SSLSocket.recv SSLSocket.recv_into SSLSocket.read "
            "SSLSocket.write", _network, _NETWORK),
    *_rules("socket", "getaddrinfo gethostbyname gethostbyaddr create_connection", _refuse_as(_looked_up),
            _NETWORK),
    *_rules("socket", "create_server socketpair", _network, _NETWORK),
    *_rules("http.client", "HTTPConnection.request", _network, _NETWORK),
    *_rules("urllib.request", "urlopen urlretrieve", _network, _NETWORK),
    *_rules("webbrowser", "open open_new open_new_tab", _refuse("a browser"), _NETWORK),
    *_rules("builtins", "input", _refuse("a question to the user"), _WAIT),
    *_rules("sys", "breakpointhook", only_here(_breakpoint), _WAIT),
    *_rules("time", "sleep", only_here(_sleep), _WAIT),
    *_rules("atexit", "register unregister", only_here(_nothing), "a replay leaves nothing behind"),
    *_rules("os", "_Environ.__setitem__ _Environ.__delitem__", only_here(_environ),
            "variables that a replay sets are put back"),
)  # fmt: skip
