"""The example in C against a real server and against the vectors."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.silent import silent
from tests.support.server import Server
from tests.support.vectors import played_server

SOURCE = Path(__file__).parents[2] / "dms" / "examples" / "client.c"
CONSUMERS, SHARE = 4, 50
LIFE = """
#define DMS_LIBRARY
#include "client.c"

#define CHECK(what) if (!(what)) { fprintf(stderr, "%s: %s\\n", #what, dms.payload); return 1; }

int main(int count, char **words) {
    struct dms dms;
    CHECK(count == 2 && !dms_connect(&dms, "127.0.0.1", words[1]));
    CHECK(!dms_call(&dms, DMS_CREATE_QUEUE, "orders", NULL, 0));
    CHECK(!dms_call(&dms, DMS_PRODUCE, "orders", "order #42", 9));
    CHECK(!dms_consume(&dms, "orders") && !strcmp(dms.payload, "order #42"));
    CHECK(!dms_settle(&dms, dms.id, DMS_NACK));
    CHECK(!dms_consume(&dms, "orders") && !strcmp(dms.payload, "order #42"));
    CHECK(!dms_settle(&dms, dms.id, DMS_ACK));
    CHECK(!dms_call(&dms, DMS_LIST_QUEUES, NULL, NULL, 0));
    CHECK(!dms_call(&dms, DMS_DELETE_QUEUE, "orders", NULL, 0));
    dms_close(&dms);
    return 0;
}
"""
JOB = r"""
#define DMS_LIBRARY
#include "client.c"

#define CHECK(what) if (!(what)) { fprintf(stderr, "%s: %s\n", #what, dms.payload); return 1; }
#define WHICH "{\"dedup\":\"mail-42\"}"
#define NOW "{\"dedup\":\"mail-42\",\"delay_ms\":0}"
#define LATER "{\"dedup\":\"mail-42\",\"delay_ms\":3600000}"

int main(int count, char **words) {
    struct dms dms;
    CHECK(count == 2 && !dms_connect(&dms, "127.0.0.1", words[1]));
    CHECK(!dms_call(&dms, DMS_CREATE_QUEUE, "orders", NULL, 0));
    CHECK(!dms_call_job(&dms, DMS_PRODUCE_WITH, "orders", LATER, "order #42", 9));
    CHECK(!dms_call_job(&dms, DMS_GET_JOB, "orders", WHICH, NULL, 0));
    CHECK(strstr(dms.payload + 2, "\"waiting\"") && !strcmp(dms_job_body(&dms), "order #42"));
    CHECK(!dms_call_job(&dms, DMS_RESCHEDULE, "orders", NOW, NULL, 0));
    CHECK(!dms_call(&dms, DMS_CONSUME_WITH, "orders", NULL, 0) && dms.type == DMS_DELIVER_WITH);
    CHECK(!strcmp(dms_job_body(&dms), "order #42"));
    uint32_t delivery = dms.id;
    CHECK(!dms_settle(&dms, delivery, DMS_TOUCH));
    CHECK(!dms_give_back(&dms, delivery, 3600000, "no such host"));
    CHECK(!dms_call_job(&dms, DMS_CANCEL, "orders", WHICH, NULL, 0));
    CHECK(dms_call_job(&dms, DMS_CANCEL, "orders", WHICH, NULL, 0) == 5);
    CHECK(!dms_call(&dms, DMS_DELETE_QUEUE, "orders", NULL, 0));
    dms_close(&dms);
    return 0;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to build the client with")
    folder = tmp_path_factory.mktemp("compiled")

    def compile_(source: Path) -> Path:
        program = folder / source.stem
        flags = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-DDMS_PATIENCE_SECONDS=1")
        subprocess.run(
            [compiler, *flags, "-I", str(SOURCE.parent), "-o", str(program), str(source)], check=True
        )
        return program

    return compile_


@pytest.mark.parametrize("persist", [(), ("-P",)])
def test_consumers_in_c_share_a_queue_and_each_message_comes_once(
    compiled: Callable[[Path], Path], tmp_path: Path, persist: tuple[str, ...]
) -> None:
    program = str(compiled(SOURCE))
    with Server(tmp_path, "-p", "0", "-t", "60", *persist, command=("dms", "serve")) as server:
        address = map(str, server.address("dms"))
        call = [program, *address]

        def said(*words: str, code: int = 0) -> str:
            done = subprocess.run([*call, *words], capture_output=True, text=True, timeout=120)
            assert (done.returncode, bool(done.stderr)) == (code, bool(code)), done.stderr
            return done.stderr if code else done.stdout

        assert said("produce", "orders", "too early", code=1).startswith("QUEUE_NOT_FOUND: ")
        said("create", "orders")
        assert said("create", "orders", code=1).startswith("QUEUE_EXISTS: ")
        assert said("produce", "orders", "x" * 4096, code=1).startswith("PAYLOAD_TOO_LARGE: ")
        messages = [f"message {number}" for number in range(CONSUMERS * SHARE)]
        said("produce", "orders", *messages)
        assert said("list") == f"orders {len(messages)}\n"
        assert said("nack", "orders") == "message 0\n"
        consumers = [
            subprocess.Popen([*call, "consume", "orders", str(SHARE)], stdout=subprocess.PIPE, text=True)
            for _ in range(CONSUMERS)
        ]
        taken = "".join(consumer.communicate(timeout=120)[0] for consumer in consumers).splitlines()
        assert [consumer.returncode for consumer in consumers] == [0] * CONSUMERS
        assert sorted(taken) == sorted(messages)
        assert said("list") == "orders 0\n"
        said("delete", "orders")
        assert server.stop() == 0


@pytest.mark.parametrize(
    "words",
    [
        ["list", "orders"],
        ["create"],
        ["buy", "orders"],
        ["produce", "orders"],
        *(["consume", "orders", count] for count in ("x", "-1", "")),
    ],
)
def test_words_that_are_no_command_are_told_how_it_is_used(
    compiled: Callable[[Path], Path], words: list[str]
) -> None:
    done = subprocess.run(
        [str(compiled(SOURCE)), "127.0.0.1", "1", *words], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ")


def test_a_server_that_says_nothing_is_none_of_dms(compiled: Callable[[Path], Path]) -> None:
    with silent() as port:
        words = [str(compiled(SOURCE)), "127.0.0.1", str(port), "list"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (1, "refused or lost: no DMS server answers there\n")


@pytest.mark.parametrize(("name", "source"), [("a queue's life", LIFE), ("ext: a job's life", JOB)])
def test_the_client_in_c_says_what_the_vectors_have(
    compiled: Callable[[Path], Path], tmp_path: Path, name: str, source: str
) -> None:
    (tmp_path / "life.c").write_text(source)
    program = compiled(tmp_path / "life.c")
    with played_server("dms", name) as port:
        done = subprocess.run([str(program), str(port)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
