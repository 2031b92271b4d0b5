"""Resolves what the user wants to try into concrete changes."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..report.text import short_path
from .arguments import find_flag
from .configs import SUFFIXES, ConfigKey, entries, find_entries, load_config
from .knobs import KNOBS, knob_value
from .records import Change, Survey
from .values import Try, normal, parse_value, resolved, shown

__all__ = ["Resolver"]

_SAME = (
    ("lr", "learning_rate", "base_lr", "max_lr", "peak_lr", "init_lr"),
    ("use_amp", "amp", "fp16", "use_fp16", "mixed_precision", "use_mixed_precision", "half"),
    ("clip", "grad_clip", "clip_grad", "max_grad_norm", "grad_clip_norm", "clip_grad_norm"),
    ("mixup_alpha", "mixup", "use_mixup"),
)
"""Common names for the same setting, for suggestions only."""


class Resolver:
    """Searches keys among a script's flags, its config files, and our own knobs."""

    def __init__(self, survey: Survey, args: Sequence[str], config: str | None = None) -> None:
        self._survey = survey
        self._notes: list[str] = []
        self.data: list[ConfigKey] = []
        """Keys of YAML, JSON and TOML files."""
        self.code: list[ConfigKey] = []
        """Constants of the script's own Python files."""
        self._looked: list[str] = []
        if config is not None:
            found = load_config(config)
            self._looked.append(os.path.abspath(config))
            target = self.code if config.endswith(".py") else self.data
            target += [ConfigKey(os.path.abspath(config), e.path, e.value) for e in found]
            return
        for file in dict.fromkeys([*_named_files(args), *survey.files]):
            (self.code if file.endswith(".py") else self.data).extend(self._quietly(file))
        for file in survey.modules:
            if file not in self._looked:
                self.code += self._quietly(file)

    def _quietly(self, file: str) -> list[ConfigKey]:
        """A file that was found by searching need not be a config."""
        self._looked.append(file)
        try:
            return load_config(file)
        except UsageError as e:
            self._notes.append(str(e).splitlines()[0])
            return []

    @property
    def flags(self) -> tuple[dict[str, Any], ...]:
        return self._survey.flags

    def resolve(self, wanted: Try, environ: Mapping[str, str] | None = None) -> Change:
        """The change for a key; an unknown key raises an error that lists where it was searched."""
        environ = os.environ if environ is None else environ
        if wanted.space == "env":
            return self._variable(wanted, environ)
        if wanted.space != "knob":
            change = self._flag(wanted) or self._config(wanted)
            if change is not None:
                return change
        knob = knob_value(wanted)
        if knob is None:
            raise UsageError(self._unknown(wanted))
        return Change(label=wanted.text, kind="knob", key=knob[0], after=knob[1])

    def _variable(self, wanted: Try, environ: Mapping[str, str]) -> Change:
        before = environ.get(wanted.key)
        value = shown(resolved(wanted, before)) if wanted.factor is not None else wanted.value
        return Change(label=wanted.text, kind="env", key=wanted.key, before=before, after=value)

    def _flag(self, wanted: Try) -> Change | None:
        flag = find_flag(self.flags, wanted.key)
        if flag is None:
            return None
        if wanted.text in self._survey.complaints:
            said = self._survey.complaints[wanted.text]
            raise UsageError(f"--try {wanted.text}: the script rejects it: {said}")
        current = flag["current"]
        if wanted.factor is not None and current is None:
            return None  # not set; the value that counts is elsewhere
        value = shown(resolved(wanted, current)) if wanted.factor is not None else wanted.value
        return Change(
            label=wanted.text,
            kind="flag",
            key=wanted.key,
            before=None if current is None else shown(current),
            after=value,
            flag=flag,
        )

    def _config(self, wanted: Try) -> Change | None:
        for group in (self.data, self.code):
            found = find_entries(group, wanted.key)
            if len(found) > 1:
                raise UsageError(self._ambiguous(wanted, found))
            if found:
                return config_change(wanted.text, found[0], resolved(wanted, found[0].value))
        return None

    def _ambiguous(self, wanted: Try, found: list[ConfigKey]) -> str:
        lines = [f"    {e.key} = {shown(e.value)}  ({short_path(e.file)})" for e in found]
        files = {e.file for e in found}
        hint = "the dotted key" if len(files) == 1 else "the dotted key, or the file with --config"
        return (
            f"--try {wanted.text}: {wanted.key!r} fits {len(found)} keys:\n"
            + "\n".join(lines)
            + f"\n  try: give {hint}"
        )

    def _unknown(self, wanted: Try) -> str:
        names = self.names()
        wanted_name = normal(wanted.key.rpartition(".")[2])
        same = [n for group in _SAME if wanted_name in group for n in group]
        by_end = {normal(n.rpartition(".")[2]): n for n in reversed(names)}
        near = [by_end[n] for n in same if n in by_end]
        close = difflib.get_close_matches(wanted_name, by_end, 3, 0.6)
        near = list(dict.fromkeys([*near, *(by_end[n] for n in close)]))[:4]
        parser = "flags" if self._survey.has_parser else "flags among its arguments"
        files = ", ".join(short_path(f) for f in self._looked) or "none"
        lines = [
            f"--try {wanted.text}: the script has no {wanted.key!r}",
            f"  looked at: {len(self.flags)} {parser}; config files: {files}; "
            f"stayfinite's knobs: {', '.join(KNOBS)}",
            *(f"  could not read: {n}" for n in self._notes if not n.endswith("over 1 MB")),
        ]
        if near:
            lines.append(f"  nearest names: {', '.join(near)}")
        if normal(wanted.key) == "lr" and wanted.factor is None:
            lines.append("  try: a factor, --try lr=0.1x, works with every script")
        elif near:
            lines.append(f"  try: --try {near[0]}={wanted.value}")
        else:
            lines.append("  try: --config FILE names the config file; env:NAME=VALUE a variable")
        return "\n".join(lines)

    def names(self) -> list[str]:
        """All keys that could be changed."""
        flags = [max(f["strings"], key=len) for f in self.flags]
        return list(dict.fromkeys([*flags, *(e.key for e in (*self.data, *self.code))]))


def config_change(label: str, entry: ConfigKey, value: Any) -> Change:
    """The change of one key of a config file."""
    return Change(
        label=label,
        kind="config",
        key=entry.key,
        before=shown(entry.value),
        after=shown(value),
        file=entry.file,
    )


def _named_files(args: Sequence[str]) -> list[str]:
    """Config files that stand among the arguments, also as `--config=FILE`."""
    found = []
    for arg in args:
        name = arg.partition("=")[2] if arg.startswith("-") else arg
        if name.lower().endswith(SUFFIXES) and Path(name).is_file():
            found.append(os.path.abspath(name))
    return found


def changed_file(file: str, text: str, change: Change) -> str:
    """The text of the file with this change."""
    from .configs import edited

    (entry,) = [e for e in entries(file, text) if e.key == change.key][:1]
    return edited(file, text, entry.path, parse_value(change.after))
