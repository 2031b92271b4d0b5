"""Every marked command in the docs prints what the page shows; the tutorial among them."""

import contextlib

import pytest
from tests.docs.blocks import DOCS, README, Shell, commands, is_same, pages, play


@pytest.fixture(scope="module")
def shell():
    with contextlib.closing(Shell()) as shell:
        yield shell


@pytest.mark.slow
@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_a_page_shows_what_its_commands_print(page, tmp_path, shell):
    seen = play(page, tmp_path, shell)
    assert seen
    for command, printed in seen:
        assert is_same(command.shown, printed), (
            f"$ {command.line}\n{printed}\ntry: python -m tests.docs.blocks --write {page}"
        )


def test_the_tutorial_and_every_how_to_are_run():
    marked = {p.relative_to(DOCS.parent).as_posix() for p in pages()}
    howtos = {p.relative_to(DOCS.parent).as_posix() for p in (DOCS / "howto").glob("*.md")}
    assert {"docs/tutorial.md", *howtos} <= marked


def test_another_output_is_noticed_and_what_is_cut_is_not():
    assert is_same("a\n…\n", "a\nb\nc\n") and is_same("…\nc\n", "a\nc\n")
    assert not is_same("a\n…\nd\n", "a\nb\nc\n") and not is_same("", "a\n")
    assert is_same("step000007-aaaaaa in 1.0 s\n", "step000007-0f3c2d in 12.5 s\n")
    assert not is_same("step000007-aaaaaa\n", "step000008-aaaaaa\n")
    assert [c.line for c in commands("$ a b\nx\ny\n$ c\n")] == ["a b", "c"]
    assert README.exists()
