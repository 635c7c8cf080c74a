"""The example for Node.js against a real server, and against the vectors."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.silent import silent
from tests.support.server import Server
from tests.support.vectors import played_server

SOURCE = Path(__file__).parents[2] / "logmq" / "examples" / "client.mjs"
SCRIPT = """
import { Client } from "%s";
const client = await Client.connect("127.0.0.1", %d);
const answers = await Promise.all([
  client.produce("orders", "hello-world"),
  client.consume("orders", 0),
  client.consume("orders", 15),
]);
console.log(JSON.stringify(answers.map((each) => each?.message?.toString() ?? each)));
await client.close();
"""
UNANSWERED = """
import { Client } from "%s";
const client = await Client.connect("127.0.0.1", %d, 50);
try { await client.consume("orders", 0); } catch (error) { console.log(error.message); }
await client.close();
"""
BYTES = """
import { Client } from "%s";
const client = await Client.connect("127.0.0.1", %d);
const bodies = [Buffer.from([0, 10, 13, 10]), Buffer.alloc(300000, 10), "", "ü ", "x\\r"];
const offsets = [];
for (const body of bodies) offsets.push(await client.produce("bytes", body));
let number = 0;
for await (const { offset, message } of client.records("bytes")) {
  if (offset !== offsets[number] || !message.equals(Buffer.from(bodies[number]))) console.log("differs");
  number += 1;
}
console.log(number);
try { await client.consume("bytes", 1); } catch (error) { console.log(error.code); }
await client.close();
"""


@pytest.fixture(scope="module")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        pytest.skip("there is no Node.js (node) to run the client with")
    return found


def ran(node: str, script: str, port: int) -> str:
    text = script % (SOURCE.as_uri(), port)
    words = [node, "--input-type=module", "-e", text]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_client_for_node_says_what_the_vectors_have(node: str) -> None:
    with played_server("logmq", "produce and consume") as port:
        assert ran(node, SCRIPT, port) == '[0,"hello-world",null]\n'


def test_a_server_that_says_nothing_is_given_up(node: str) -> None:
    with silent() as port:
        assert ran(node, UNANSWERED, port) == "LOST no answer came\n"


@pytest.mark.parametrize("words", [["produce", "orders"], ["consume", "orders", "x"], ["buy", "orders"], []])
def test_words_that_are_no_command_are_told_how_it_is_used(node: str, words: list[str]) -> None:
    call = [node, str(SOURCE), "127.0.0.1", "1", *words]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")


def test_the_client_for_node_on_a_real_server(node: str, tmp_path: Path) -> None:
    with Server(tmp_path, "-p", "0", command=("logmq", "serve")) as server:
        host, port = server.address("logmq")
        call = [node, str(SOURCE), host, str(port)]

        def said(*words: str, code: int = 0) -> str:
            done = subprocess.run([*call, *words], capture_output=True, text=True, timeout=120)
            assert (done.returncode, bool(done.stderr)) == (code, bool(code)), done.stderr
            return done.stderr if code else done.stdout

        assert said("produce", "orders", "two teas", "one coffee") == "0\n12\n"
        assert said("consume", "orders") == "0\ttwo teas\n12\tone coffee\n"
        assert said("consume", "orders", "12") == "12\tone coffee\n"
        assert said("consume", "orders", "5", code=1).startswith("BAD_OFFSET ")
        with subprocess.Popen([*call, "tail", "orders", "12"], stdout=subprocess.PIPE, text=True) as tail:
            assert tail.stdout
            assert tail.stdout.readline() == "12\tone coffee\n"
            said("produce", "orders", "a cake")
            assert tail.stdout.readline() == "26\ta cake\n"
            tail.terminate()
        assert ran(node, BYTES, port) == "5\nBAD_OFFSET\n"
        assert server.stop() == 0
