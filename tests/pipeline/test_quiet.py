"""What Spark says of itself stays out of a user's sight; what he set himself stays."""

import importlib.util
import subprocess
import sys

from brokers.pipeline import quiet

OPTIONS = "spark.driver.extraJavaOptions"


def test_javas_options_of_the_user_stand_behind_ours() -> None:
    found = quiet.settings({OPTIONS: "-Xss4m -Dlog4j2.configurationFile=mine", "a": "b"}, environ={})
    ours, mine = found[OPTIONS].split(" -Xss4m ")
    assert ours.startswith(f"-Dlog4j2.configurationFile={quiet.LOGGING.as_uri()} ")
    assert mine == "-Dlog4j2.configurationFile=mine"  # of two Java takes the last
    assert found["a"] == "b"
    assert quiet.LOGGING.exists()


def test_it_is_put_in_once() -> None:
    once = quiet.settings({"a": "b"}, "error", environ={})
    assert quiet.settings(once, environ={}) == once


def test_a_configuration_of_the_users_own_is_left_alone() -> None:
    assert quiet.settings({"a": "b"}, environ={"SPARK_CONF_DIR": "/etc/spark"}) == {"a": "b"}


def test_workers_of_this_machine_say_nothing_of_a_pipe_that_nobody_reads() -> None:
    key = "spark.python.daemon.module"
    assert importlib.util.find_spec(quiet.of_a_verb({})[key]) is not None
    assert key not in quiet.of_a_verb({}, "spark://there:7077")
    program = (
        "import sys, traceback; from brokers.pipeline import workers\n"
        "for error in (BrokenPipeError(32, 'nobody'), ValueError('news')):\n"
        "    try: raise error\n"
        "    except Exception: workers.print_exc()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "ValueError: news" in done.stderr
    assert "nobody" not in done.stderr


def test_a_verb_says_errors_alone_unless_told() -> None:
    assert quiet.of_a_verb({})["spark.log.level"] == "ERROR"
    assert "brokers.log.level=error" in quiet.of_a_verb({})[OPTIONS]
    assert quiet.of_a_verb({"spark.log.level": "INFO"})["spark.log.level"] == "INFO"
