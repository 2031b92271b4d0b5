"""The clinic is not installed with the package: find it beside the tests."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))
