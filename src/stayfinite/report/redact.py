"""Removes secrets from stored command lines, by name and by shape."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["HIDDEN", "redact_arguments", "redact_text"]

HIDDEN = "***"

_NAME = re.compile(
    r"(^|[-_.])(api[-_.]?)?(key|keys|token|tokens|secret|secrets|password|passwd|passphrase|pass|pwd|pw|auth|"
    r"authorization|credential|credentials|creds|bearer|cookie|dsn|private)($|[-_.\d])"
    r"|apikey|accesskey|secretkey|authtoken",
    re.I,
)
_HARMLESS = re.compile(
    r"(num|max|min|n|eos|bos|pad|unk|mask|sep|cls|special|stop|input|output|context|total|new|per|image|"
    r"vocab|sort|primary|foreign|dict|batch|target|label|value|query|state)[-_.]?(key|keys|token|tokens)"
    r"|(key|token|tokens)[-_.]?(id|ids|dim|dims|size|length|len|count|type|types|name|names|bias|value|drop|"
    r"padding|mask|embed|budget|per)",
    re.I,
)
"""Model parameters that look like secrets: `--max-tokens`, `--key-dim`, `--pad-token-id`."""
_USERINFO = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]+(?=@)")
_QUERY = re.compile(
    r"([?&][^=&#\s]*(?:key|token|secret|sig|signature|password|auth)[^=&#\s]*=)[^&#\s]+", re.I
)
_SHAPES = re.compile(
    r"(?<![\w/])(?:sk-[\w-]{8,}|sk_(?:live|test)_\w{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|"
    r"hf_\w{16,}|A(?:KIA|SIA)[A-Z0-9]{12,}|AIza[\w-]{20,}|xox[abprs]-[\w-]{8,}|ya29\.[\w-]{10,}|"
    r"eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*|[0-9a-f]{32,}|-----BEGIN [A-Z ]*KEY-----.*)(?![\w/])",
    re.I | re.S,
)


def is_secret_name(name: str) -> bool:
    """Whether a value with this name may be a secret.

    >>> [is_secret_name(n) for n in ("api-key", "WANDB_API_KEY", "max_tokens", "key_dim", "lr")]
    [True, True, False, False, False]
    """
    return bool(_NAME.search(name)) and not _HARMLESS.search(name)


def redact_text(text: str) -> str:
    """Remove passwords in addresses, and words that look like keys.

    >>> redact_text("https://me:hunter2@example.org/x?token=abc&n=1")
    'https://***@example.org/x?token=***&n=1'
    """
    text = _USERINFO.sub(HIDDEN, text)
    text = _QUERY.sub(rf"\1{HIDDEN}", text)
    return _SHAPES.sub(HIDDEN, text)


def redact_arguments(words: Sequence[str]) -> list[str]:
    """Redact a command line; the number of words stays the same.

    >>> redact_arguments(["--lr", "0.1", "--api-key", "abc", "--password=x", "db.token=y"])
    ['--lr', '0.1', '--api-key', '***', '--password=***', 'db.token=***']
    """
    shown: list[str] = []
    is_next_secret = False
    for word in words:
        name, separator, _ = word.partition("=")
        if is_next_secret and not word.startswith("--"):
            shown.append(HIDDEN)
            is_next_secret = False
        elif separator and is_secret_name(name.lstrip("-+")):
            shown.append(f"{name}={HIDDEN}")
            is_next_secret = False
        else:
            shown.append(redact_text(word))
            is_next_secret = word.startswith("-") and is_secret_name(word.lstrip("-"))
    return shown
