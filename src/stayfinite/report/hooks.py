"""Runs the user's command or web request on an incident."""

from __future__ import annotations

import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable

from ..records import Incident
from ..saying import say

__all__ = ["incident_hook", "post", "run_command"]

_LIMIT_SECONDS = 60.0


def incident_hook(target: str) -> Callable[[Incident], object]:
    """Handle `--on-incident TARGET`: POST to an http(s) address, run anything else as a shell command."""
    if target.startswith(("http://", "https://")):
        return lambda incident: post(target, incident)
    return lambda incident: run_command(target, incident)


def run_command(
    command: str, incident: Incident, limit_seconds: float = _LIMIT_SECONDS
) -> int | None:
    """Run a shell command with the incident's JSON on standard input; returns its exit code.

    STAYFINITE_STEP, STAYFINITE_CAUSE, STAYFINITE_ID and STAYFINITE_PATH are set in its environment. A command that fails or hangs is
    reported in one line and never stops the training.
    """
    extra = {
        "STAYFINITE_ID": incident.id,
        "STAYFINITE_STEP": str(incident.event.step),
        "STAYFINITE_CAUSE": incident.diagnosis.cause or "",
        "STAYFINITE_PATH": incident.path or "",
    }
    try:
        done = subprocess.run(
            command,
            shell=True,
            input=incident.to_json(indent=None),
            text=True,
            timeout=limit_seconds,
            env={**os.environ, **extra},
            stdout=2,  # to standard error, so that the script's own output is unchanged
            check=False,
        )
    except (OSError, ValueError) as e:
        _complain(f"the command on an incident could not run: {e}")
        return None
    except subprocess.TimeoutExpired:
        _complain(
            f"the command on an incident took more than {limit_seconds:g} s and was ended: {command}"
        )
        return None
    if done.returncode:
        _complain(f"the command on an incident exited with {done.returncode}: {command}")
    return done.returncode


def post(address: str, incident: Incident, limit_seconds: float = 10.0) -> int | None:
    """POST the incident's JSON; returns the status, or None without an answer."""
    request = urllib.request.Request(
        address,
        data=incident.to_json(indent=None).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=limit_seconds) as answer:
            return int(answer.status)
    except (OSError, urllib.error.URLError, ValueError) as e:
        _complain(f"the incident could not be posted to {address}: {e}")
        return None


def _complain(text: str) -> None:
    say(f"stayfinite: {text}")
