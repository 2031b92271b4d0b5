"""A process that has imported torch and stayfinite, and forks for each command that it is given.

`tests/launch.py` talks to it: a job comes as a line of JSON on descriptor 0; the child's process id and
then its exit code go back on descriptor 3. Importing patches nothing, so a child is as a new interpreter is.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import sys
import threading
import traceback
import warnings

TORCH = ("torch", "torch._dynamo", "torch.utils.data", "torch.optim.swa_utils", "tqdm", "typer")
OURS = (
    "stayfinite.cli.app", "stayfinite.cli.run", "stayfinite.runtime.script.run_script", "stayfinite.investigate.entry",
    "stayfinite.lint", "stayfinite.report.hooks", "safetensors.torch", "typer._adapters",
)  # fmt: skip


def run(args):
    """What `python ARGS` does."""
    while args[0] == "-W":
        warnings._setoption(args[1])
        args = args[2:]
    if args[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *args[2:]], ""
        main = type(sys)("__main__")
        main.__builtins__ = __builtins__
        sys.modules["__main__"] = main
        exec(compile(args[1], "<string>", "exec"), main.__dict__)
    elif args[0] == "-m":
        sys.argv, sys.path[0] = args[1:], os.getcwd()
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = args, os.path.dirname(os.path.abspath(args[0]))
        runpy.run_path(args[0], run_name="__main__")


def child(job):
    os.close(3)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["env"])
    files = [(0, os.devnull, os.O_RDONLY)]
    files += [(fd, job[name], os.O_WRONLY | os.O_APPEND) for fd, name in ((1, "out"), (2, "err"))]
    for fd, path, how in files:
        opened = os.open(path, how)
        os.dup2(opened, fd)
        os.close(opened)
    try:
        run(job["args"])
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
    except BaseException as e:
        # As the interpreter would show it: without the frames of this file and of `runpy`.
        frames = e.__traceback__
        while frames and frames.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            frames = frames.tb_next
        if sys.excepthook is sys.__excepthook__:
            traceback.print_exception(type(e), e, frames)
        else:
            sys.excepthook(type(e), e, frames)
        code = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main():
    for name in TORCH if sys.argv[1] == "plain" else TORCH + OURS:
        with contextlib.suppress(ImportError):  # another version of a library
            importlib.import_module(name)
    importlib.import_module("gloo_exit").avoid()  # beside this file, wherever PYTHONPATH leads
    sys.modules["torch"].manual_seed(
        0
    )  # some builds seed themselves by chance: commands end alike every time
    gc.collect()
    gc.freeze()  # a child's collections pass by what was imported here, and leave its memory shared
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        os.write(3, b"%d\n" % pid)
        os.write(3, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


if __name__ == "__main__":
    main()
