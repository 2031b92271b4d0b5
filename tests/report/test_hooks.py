"""Commands and requests on an incident: they get everything, and are never in the way."""

import http.server
import json
import threading

import pytest
from tests.report.runs import incident

from stayfinite.records import Incident
from stayfinite.report.hooks import incident_hook, post, run_command


def test_the_command_gets_the_whole_incident(tmp_path):
    given = incident(7, tmp_path)
    hook = incident_hook(f"cat > {tmp_path}/got.json; echo $STAYFINITE_STEP $STAYFINITE_CAUSE > {tmp_path}/words")  # fmt: skip
    hook(given)
    got = Incident.from_json((tmp_path / "got.json").read_text())
    assert got.to_json() == given.to_json()
    assert (tmp_path / "words").read_text() == "7 log_of_zero\n"


def test_its_output_goes_to_standard_error(tmp_path, capfd):
    assert run_command("cat > /dev/null; echo hello", incident(7, tmp_path)) == 0
    out, err = capfd.readouterr()
    assert (out, err) == ("", "hello\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("exit 3", "the command on an incident exited with 3: exit 3"),
        ("no-such-command-at-all", "exited with 127"),
        ("sleep 5", "took more than 0.2 s and was ended: sleep 5"),
        ("a\0b", "could not run"),
    ],
)
def test_a_command_that_fails_or_hangs_is_one_line(command, words, tmp_path, capfd):
    run_command(command, incident(7, tmp_path), limit_seconds=0.2 if "sleep" in command else 30)
    err = capfd.readouterr().err
    assert words in err and err.splitlines()[-1].startswith(
        "stayfinite: the command on an incident"
    )


def test_a_web_address_gets_a_post(tmp_path, capsys):
    got = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}/x"
    incident_hook(address)(incident(7, tmp_path))
    thread.join(600)
    server.server_close()
    assert got[0][0] == "application/json" and got[0][1]["event"]["step"] == 7
    assert post(address, incident(7, tmp_path), limit_seconds=2) is None
    assert "could not be posted to http://127.0.0.1" in capsys.readouterr().err
