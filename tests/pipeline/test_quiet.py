"""What Spark says of itself stays out of a user's sight; what he set himself stays."""

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


def test_a_verb_says_errors_alone_unless_told() -> None:
    assert quiet.of_a_verb({})["spark.log.level"] == "ERROR"
    assert "brokers.log.level=error" in quiet.of_a_verb({})[OPTIONS]
    assert quiet.of_a_verb({"spark.log.level": "INFO"})["spark.log.level"] == "INFO"
