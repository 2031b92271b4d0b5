"""Settings are in pyproject.toml; this only takes `examples/` into a wheel (`stayfinite demo`)."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
KINDS = {".py", ".yaml", ".md", ".npz"}


class BuildWithExamples(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return  # a clone has them beside `src`
        for source in sorted((HERE / "examples").glob("*/*")):
            if source.is_file() and source.suffix in KINDS:
                target = Path(self.build_lib, "stayfinite", *source.relative_to(HERE).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


setup(cmdclass={"build_py": BuildWithExamples})
