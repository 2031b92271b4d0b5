"""A share of the fuzzing; `python -m tests.checkpoint.fuzz --count 50000` does the whole."""

from tests.launch import ROOT, forked


def test_a_few_hundred_mutants():
    """In a process of its own: an audit hook cannot be taken away again."""
    done = forked(["-m", "tests.checkpoint.fuzz", "--count", "300", "--seed", "7"], ROOT)
    assert done.code == 0, done.out + done.err
    assert "300 mutants" in done.out


def test_the_watch_notices_an_escape():
    """The audit hook is worth something only if it sees what it is there for."""
    code = (
        "from tests.checkpoint.fuzz import Watch\n"
        "import os, tempfile; tempfile.gettempdir()\n"
        "watch = Watch(); watch.is_on = True\n"
        "os.system('true'); open(os.devnull, 'w').close(); tempfile.TemporaryFile().close(); print(len(watch.seen))\n"
    )
    done = forked(["-c", code], ROOT)
    assert done.out.strip() == "2", done.out + done.err
