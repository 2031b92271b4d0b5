"""`python -m benchmarks`: every benchmark, one after the other."""

import pathlib
import runpy
import sys

SKIP = {"__init__", "__main__", "models"}

if __name__ == "__main__":
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        if path.stem not in SKIP:
            print(f"\n=== {path.stem}", flush=True)
            sys.argv = [path.stem]
            runpy.run_module(f"benchmarks.{path.stem}", run_name="__main__")
