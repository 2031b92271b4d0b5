"""Secrets in command lines: by name and by shape, and the words of models stay."""

import pytest

from stayfinite.report.redact import (
    HIDDEN,
    is_secret_name,
    redact_arguments,
    redact_text,
)


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "S1"], ["--password=S1"], ["--hf_token", "S1"], ["-token", "S1"], ["auth.secret=S1"],
        ["+logger.api_key=S1"], ["--aws-secret-access-key", "S1"], ["--store", "s3://user:S1@host/x"],
        ["--url", "https://h/x?sig=S1&n=2"], ["--wandb.apikey=S1"], ["--db-passwd", "S1"],
    ],
)  # fmt: skip
def test_a_secret_is_hidden_and_the_rest_stays(words):
    shown = redact_arguments(["train.py", *words, "--lr", "0.1"])
    assert len(shown) == len(words) + 3 and shown[-2:] == ["--lr", "0.1"]
    assert HIDDEN in " ".join(shown) and "S1" not in " ".join(shown)


@pytest.mark.parametrize(
    "key",
    [
        "sk-proj-abcdefgh12345678", "ghp_" + "a1B2" * 9, "hf_" + "abcdEFGH" * 4, "AKIAIOSFODNN7EXAMPLE",
        "0123456789abcdef" * 2 + "01234567", "xoxb-1234567890-abc", "eyJhbGciOi.eyJzdWIiOiIx.abc-d",
    ],
)  # fmt: skip
def test_what_looks_like_a_key_is_hidden_wherever_it_stands(key):
    assert key not in " ".join(redact_arguments([key, "--note", f"a {key} b"]))


@pytest.mark.parametrize(
    "words",
    [
        ["--max-tokens", "512"], ["--key-dim", "64"], ["--pad-token-id=0"], ["--data", "/mnt/sets/c4/train.bin"],
        ["--num_keys", "3"], ["--token-drop", "0.1"], ["--optimizer", "adamw"], ["--resume", "step-1000.pt"],
        ["--monkey", "x"], ["--keyboard=de"], ["--path", "runs/pass1/x"],
    ],
)  # fmt: skip
def test_the_words_of_models_stay(words):
    assert redact_arguments(words) == words


def test_an_option_after_a_flag_is_no_secret():
    assert redact_arguments(["--use-auth", "--lr", "0.1"]) == ["--use-auth", "--lr", "0.1"]


def test_text_without_secrets_is_left_alone():
    assert redact_text("step 3: https://example.org/a?b=1") == "step 3: https://example.org/a?b=1"
    assert not is_secret_name("")
