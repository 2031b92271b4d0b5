"""Runs commands in children of a process that has torch loaded already: the same, without the seconds of import.

Reads one JSON object a line (argv, cwd, out) and answers with the exit code. Only `python FILE` and
`stayfinite ...` are known here.
"""

import json
import os
import runpy
import sys


def child(argv: list[str], cwd: str, out: str) -> None:
    """What the command would do in a process of its own; never comes back."""
    os.chdir(cwd)
    fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (fd, 1), (fd, 2)):
        os.dup2(source, target)
    code = 0
    try:
        if argv[0] == "stayfinite":
            from stayfinite.cli import main

            sys.argv = argv
            main(argv[1:])
        else:
            sys.argv, sys.path[0] = argv[1:], os.path.dirname(os.path.abspath(argv[1]))
            runpy.run_path(argv[1], run_name="__main__")
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    import stayfinite.cli.app
    import stayfinite.guard  # noqa: F401 - and with it torch

    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            child(asked["argv"], asked["cwd"], asked["out"])
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
