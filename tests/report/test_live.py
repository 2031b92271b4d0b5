"""The live page's server: only this machine, only with the token, only reading; and in a real browser."""

import contextlib
import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest
from tests.report.browser import chromium
from tests.report.runs import NAN, incident, row, write_run
from typer.testing import CliRunner

from stayfinite.cli.app import app
from stayfinite.report.journal import Journal
from stayfinite.report.live import LiveServer
from stayfinite.report.store import RunFolder


@contextlib.contextmanager
def serving(run, **options):
    server = LiveServer(run, interval=0.1, **options)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def ask(server, path, method="GET", host=None):
    port = urlsplit(server.address).port
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live") / "run"
    write_run(folder, num_steps=60, bad=(30,))
    return folder


@pytest.fixture(scope="module")
def server(finished):
    with serving(finished) as server:
        yield server


def test_the_page_needs_the_token_of_its_address(server):
    for path in ("/", "/page", "/version"):
        assert ask(server, f"{path}?token={server.token}")[0] == 200
        for wrong in (path, f"{path}?token=", f"{path}?token=x{server.token}", f"{path}?token=%ff"):
            status, body, _ = ask(server, wrong)
            assert status == 403 and "<article" not in body
    assert len(server.token) >= 20


def test_another_hosts_name_is_refused_also_with_the_token(server):
    asked = f"/?token={server.token}"
    for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
        assert ask(server, asked, host=host or " ")[0] in (400, 403)
    for host in ("localhost", "localhost:9999", "127.0.0.1"):
        assert ask(server, asked, host=host)[0] == 200


def test_nothing_can_be_written_and_no_path_is_opened(server, finished):
    before = {p: p.stat().st_mtime_ns for p in finished.rglob("*")}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert ask(server, f"/?token={server.token}", method)[0] == 501
    for path in ("/journal.jsonl", "/../../etc/passwd", "/%2e%2e/journal.jsonl", "//etc/passwd"):
        assert ask(server, f"{path}?token={server.token}")[0] == 404
    assert {p: p.stat().st_mtime_ns for p in finished.rglob("*")} == before


def test_it_listens_on_the_loopback_alone(server):
    assert server._server.server_address[0] == "127.0.0.1"
    port = urlsplit(server.address).port
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:  # a machine that does not know its own name
        return
    if not own.startswith("127."):
        with pytest.raises(OSError):
            socket.create_connection((own, port), timeout=2).close()


def test_the_page_may_ask_its_own_server_and_nobody_else(server):
    _, body, headers = ask(server, f"/?token={server.token}")
    assert "connect-src 'self'" in body.replace("&#39;", "'") and "default-src 'none'" in body
    assert headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Frame-Options"] == "DENY"
    assert server.token not in body, "the page knows its token from its address alone"
    status, empty, _ = ask(server, f"/?token={server.token}", "HEAD")
    assert (status, empty) == (200, "")


def test_a_run_that_has_not_begun_is_waited_for(tmp_path):
    with serving(tmp_path) as server:
        assert ask(server, f"/?token={server.token}")[0] == 200
        first = ask(server, f"/version?token={server.token}")[1]
        journal = Journal(tmp_path / "journal.jsonl")
        journal.append(row(0, 1.0))
        journal.close()
        deadline = time.monotonic() + 300
        while ask(server, f"/version?token={server.token}")[1] == first:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_the_page_is_made_anew_only_when_something_was_written(server, monkeypatch):
    ask(server, f"/?token={server.token}")
    monkeypatch.setattr("stayfinite.report.live.render_html", lambda *_: pytest.fail("made anew"))
    assert ask(server, f"/page?token={server.token}")[0] == 200


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--web", "--once"], "`--once` prints one picture in the terminal; leave out `--web`"),
        (["--port", "8000"], "`--port` goes with `--web`"),
    ],
)
def test_options_that_contradict_each_other_are_refused(finished, options, said):
    result = CliRunner().invoke(app, ["watch", str(finished), *options])
    assert result.exit_code == 2 and said in result.stderr


def test_a_port_that_is_taken_is_reported(server, finished):
    port = str(urlsplit(server.address).port)
    result = CliRunner().invoke(app, ["watch", str(finished), "--web", "--port", port])
    assert result.exit_code == 2 and f"port {port} cannot be had" in result.stderr


def test_the_command_prints_its_address_and_ends_with_ctrl_c(finished):
    command = [sys.executable, "-m", "stayfinite", "watch", "--web", str(finished)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # a suite that was started in the background ignores Ctrl-C, and so would this command
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as p:  # fmt: skip
        address = p.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{20,}", address)
        p.send_signal(signal.SIGINT)
        _, errors = p.communicate(timeout=300)
    assert p.returncode == 0
    assert errors == (
        "stayfinite watch: only this machine reaches it, and only with the token; Ctrl-C ends\n"
    )


def wait(driver, script):
    deadline = time.monotonic() + 300
    while not driver.execute_script(f"return !!({script})"):
        assert time.monotonic() < deadline, script
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_new_steps_and_incidents_appear_by_themselves(tmp_path, width):
    pytest.importorskip("selenium")
    folder = tmp_path / "run"
    store = RunFolder(folder, say=lambda _: None)
    journal = Journal(folder / "journal.jsonl")
    for step in range(50):
        journal.append(row(step, 2.0 / (step + 1)))
    journal.flush()
    with serving(folder) as server, chromium(width) as driver:
        driver.get(server.address)
        points = "document.querySelector('figure[data-name=loss]').dataset"
        wait(driver, f"{points}.points === '50'")
        assert driver.find_elements("css selector", "article.incident") == []
        driver.find_element("id", "theme").click()
        theme = driver.execute_script("return document.documentElement.dataset.theme")
        driver.execute_script("document.querySelector('figure[data-name=loss] .scale').click()")

        saved = store.save(incident(50, folder / "src"))
        journal.append(row(50, NAN, applied=False, flags=["incident"]))
        journal.event("incident", step=50, id=saved.id, text="the loss is nan", cause="log_of_zero")
        for step in range(51, 80):
            journal.append(row(step, 2.0 / (step + 1)))
        journal.flush()
        wait(driver, f"{points}.to === '79' && {points}.bad === '1'")
        # The page may change once more at any time: elements are found and read in one go.
        article = "document.querySelector('article.incident')"
        assert "log_of_zero" in driver.execute_script(f"return {article}.innerText")
        assert "fresh" in driver.execute_script(f"return {article}.className")
        news = driver.find_element("id", "news")
        assert news.is_displayed() and news.text == "a new incident"
        assert news.get_attribute("href").endswith(f"#{saved.id}")
        assert driver.title.startswith("(1) ")
        assert driver.execute_script(f"return {points}.log") == "0", "linear stays linear"
        assert driver.execute_script("return document.documentElement.dataset.theme") == theme
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert driver.execute_script(f"return {wide}") <= 0
        assert driver.get_log("browser") == []

        driver.execute_script("document.querySelector('[data-zoom=in]').click()")
        shown = driver.execute_script(f"return [{points}.from, {points}.to]")
        journal.append(row(80, 0.01))
        journal.close()
        wait(driver, "document.querySelector('#summary').textContent.includes('81')")
        assert "fresh" in driver.execute_script(f"return {article}.className"), "until it is read"
        assert driver.execute_script(f"return [{points}.from, {points}.to]") == shown
        server.close()
        wait(driver, "document.querySelector('#live').className === 'gone'")
