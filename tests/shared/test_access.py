"""Rules, users, and decisions."""

import itertools
from functools import cache

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.access import (
    DECISIONS_MAX,
    Access,
    Required,
    Rule,
    Secret,
    User,
    UsersError,
    covers_subscription,
    parse_users,
    topic_globs,
    written_users,
)
from shared.shares import Shares


def access(**users: list[str]) -> Access:
    return Access({name: User(name, tuple(map(Rule.parse, allow))) for name, allow in users.items()})


@pytest.mark.parametrize(
    ("rule", "protocol", "action", "name", "allowed"),
    [
        ("logmq:read:orders.*", "logmq", "read", "orders.eu", True),
        ("logmq:read:orders.*", "logmq", "read", "orders", False),
        ("logmq:read:orders.*", "logmq", "write", "orders.eu", False),
        ("logmq:read:orders.*", "dms", "read", "orders.eu", False),
        ("logmq:read:orders", "logmq", "read", "orders.eu", False),
        ("logmq:read:orders", "logmq", "read", "my.orders", False),
        ("*:read:a?c", "dms", "read", b"abc", True),
        ("*:read:a?c", "dms", "read", b"ac", False),
        ("*:read:a?c", "dms", "read", "aéc".encode(), True),
        ("*:*:*", "kqmsgq", "manage", b"\xff\xfe\n", True),
        ("dms:*:[ab]", "dms", "read", "a", False),
        ("dms:*:[ab]", "dms", "read", "[ab]", True),
        ("dms:*:*a*a*a*a*a*b", "dms", "read", b"a" * 4096, False),
    ],
)
def test_a_rule_allows_what_its_three_fields_match_and_nothing_else(
    rule: str, protocol: str, action: str, name: str | bytes, allowed: bool
) -> None:
    assert access(ann=[rule]).guard(protocol).may("ann", action, name) is allowed
    assert access(ann=["dms:read:other", rule]).guard(protocol).may("ann", action, name) is allowed
    assert not access(ann=[rule]).guard(protocol).may("bob", action, name)
    assert not access(ann=[rule]).guard(protocol).may("", action, name)


def test_every_protocol_is_not_the_administration() -> None:
    users = access(ann=["*:*:*"], bob=["admin:read"], eve=["admin:*"])
    assert not users.may_admin("ann", "read")
    assert users.may_admin("bob", "read")
    assert not users.may_admin("bob", "manage")
    assert users.may_admin("eve", "manage")
    assert not access(bob=["admin:*"]).guard("logmq").may("bob", "read", "orders")


@pytest.mark.parametrize(
    ("own", "given", "includes"),
    [
        ("*:*:*", "dms:read:jobs", True),
        ("*:*:*", "*:*:*", True),
        ("*:*:*", "admin:read", False),
        ("admin:*", "admin:users", True),
        ("admin:manage", "admin:*", False),
        ("dms:*:*", "*:read:jobs", False),
        ("dms:read:*", "dms:*:jobs", False),
        ("dms:read:jobs.*", "dms:read:jobs.*", True),
        ("dms:read:jobs.*", "dms:read:jobs*", False),
        ("dms:read:*.eu", "dms:read:jobs.*.eu", True),
        ("dms:read:?", "dms:read:*", False),
        ("dms:read:a?", "dms:read:a?", True),
        ("dms:read:a*", "dms:read:a?", True),
        ("dms:read:ab", "dms:read:a?", False),
        ("pubsub:read:home/*", "pubsub:read:home/*", True),
        ("pubsub:read:home/?*", "pubsub:read:home/*", False),
    ],
)
def test_nobody_gives_what_he_has_not(own: str, given: str, includes: bool) -> None:
    assert Rule.parse(own).includes(Rule.parse(given)) is includes
    users = access(ann=[own, "admin:users"], bob=[own])
    eve = User("eve", (Rule.parse(given),))
    assert (not users.refusal_of_gift("ann", eve)) is (includes or given == "admin:users")
    assert bool(users.refusal_of_gift("bob", eve)) or own == "admin:*"


def test_a_share_is_of_users_among_others_and_each_may_have_his_own() -> None:
    assert Access().share_of("ann") == access(ann=[]).share_of("ann") == 100
    users = access(ann=[], bob=[], udp=[])
    users.users = {**(users.users or {}), "eve": User("eve", user_share=80)}
    assert [users.share_of(name) for name in ("ann", "anonymous", "udp", "eve")] == [50, 50, 50, 80]
    assert [users.share_of(name) for name in ("(token)", "bridge/x")] == [100, 100]
    assert access(ann=[]).share_of("anonymous") == 50
    users.user_share = 10
    shares = Shares(users.share_of)
    for _ in range(10):
        assert shares.fits("ann", 100)
        shares.add("ann")
    assert not shares.fits("ann", 100)
    assert shares.fits("bob", 100, 10)
    assert not shares.fits("bob", 100, 11)
    assert shares.fits("", 100, 1000)
    assert shares.fits("bob", 1), "one always"
    shares.add("ann", -1)
    assert shares.fits("ann", 100)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "logmq",
        "logmq:read",
        "logmq:read:",
        ":read:x",
        "LOGMQ:read:x",
        "logmq::x",
        "admin:write",
        "admin:read:*",
        "admin",
        "logmq:re ad:x",
        "logmq:read:a\nb",
        "*:*:\x1b[0m",
    ],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(UsersError):
        Rule.parse(text)


def test_decisions_are_made_anew_when_the_users_change() -> None:
    users = access(ann=["logmq:read:a"])
    guard = users.guard("logmq")
    assert guard.may("ann", "read", "a")
    assert not guard.may("ann", "read", "b")
    users.replace({"ann": User("ann", (Rule.parse("logmq:read:b"),))})
    assert not guard.may("ann", "read", "a")
    assert guard.may("ann", "read", "b")


@attrs.define(eq=False)
class Client:
    user: str
    told: list[str] = attrs.field(factory=list)

    def access_changed(self) -> None:
        self.told.append("changed")

    def close_for(self, reason: str) -> None:
        self.told.append("closed")


def test_connections_of_users_who_are_gone_are_closed_and_those_with_new_rules_hear_of_them() -> None:
    secret = Secret(bytes(16), bytes(32))
    users = Access({name: User(name, password=secret) for name in ("ann", "bob", "eve")})
    clients = [Client(name) for name in ("ann", "bob", "eve", "anonymous", "")]
    users.guard("logmq").clients.update(clients[:2])
    users.guard("dms").clients.update(clients[2:])
    users.replace(
        {"ann": User("ann", (Rule.parse("*:*:*"),), secret), "bob": User("bob", password=Secret(b"", b""))}
    )
    assert [client.told for client in clients] == [
        ["changed"],
        ["closed"],
        ["closed"],
        [],
        [],
    ]
    users.replace(None)
    assert [client.told[-1:] for client in clients[3:]] == [["changed"], ["changed"]]


@pytest.mark.parametrize(
    ("required", "exposed", "file", "asked"),
    [
        ("beyond-loopback", False, True, False),
        ("beyond-loopback", True, True, True),
        ("beyond-loopback", True, False, False),
        ("always", False, True, True),
        ("always", False, False, True),
        ("never", True, True, False),
    ],
)
def test_a_login_is_asked_for_where_the_setting_says_so(
    required: Required, exposed: bool, file: bool, asked: bool
) -> None:
    guard = Access({} if file else None).guard("logmq", required, exposed=exposed)
    assert guard.asks_login is asked
    assert guard.opens is not asked


def test_decisions_that_are_kept_have_a_bound() -> None:
    guard = access(ann=["logmq:read:*"]).guard("logmq")
    for n in range(DECISIONS_MAX + 100):
        assert guard.may("ann", "read", f"{n}")
    guard.may("ann", "read", b"x" * 4096)
    assert len(guard) <= DECISIONS_MAX


def test_without_a_users_file_everything_is_open() -> None:
    assert Access().guard("logmq").opens
    assert access(ann=[]).guard("logmq").opens
    assert not access(ann=[], anonymous=[]).guard("logmq").opens
    assert not access(ann=[]).guard("logmq", "always").opens


def test_a_denial_is_counted_and_told_once_with_the_rule_that_would_allow_it() -> None:
    told: list[dict[str, str]] = []
    users = access(ann=[])
    users.denied = lambda **said: told.append(said)
    guard = users.guard("dms")
    guard.refuse("ann", "write", b"jobs", "127.0.0.1:1")
    guard.refuse("ann", "write", b"jobs", "127.0.0.1:2")
    assert guard.denied["write"] == 2
    (said,) = told
    assert (said["user"], said["peer"]) == ("ann", "127.0.0.1:1")
    assert access(ann=[said["rule"]]).guard("dms").may("ann", "write", b"jobs")


def test_what_was_given_as_a_name_and_is_nobodys_is_not_told() -> None:
    told: list[dict[str, str]] = []
    users = access(ann=[])
    users.audit = lambda **said: told.append(said)
    guard = users.guard("dms")
    guard.login_failed("ann", "127.0.0.1:1")
    guard.login_failed("hunter2", "127.0.0.1:1")
    assert [said["user"] for said in told] == ["ann", "(unknown)"]
    assert guard.logins_failed == 2


# Subscriptions.

LETTERS = "ab/"
BYTES_MAX = 5


@cache
def topics() -> list[str]:
    letters = LETTERS + "~"  # one that is in no pattern
    return ["".join(each) for n in range(BYTES_MAX + 1) for each in itertools.product(letters, repeat=n)]


def matches(levels: tuple[str, ...], topic: tuple[str, ...]) -> bool:
    """A subscription's pattern against a topic, in the plainest words."""
    if not levels:
        return not topic
    if levels[0] == "*":
        return any(matches(levels[1:], topic[n:]) for n in range(len(topic) + 1))
    return bool(topic) and levels[0] in ("+", topic[0]) and matches(levels[1:], topic[1:])


def globbed(glob: str, text: str) -> bool:
    if not glob:
        return not text
    if glob[0] == "*":
        return any(globbed(glob[1:], text[n:]) for n in range(len(text) + 1))
    return bool(text) and glob[0] in ("?", text[0]) and globbed(glob[1:], text[1:])


patterns = st.lists(st.sampled_from(["*", "+", "a", "b", "", "ab"]), min_size=1, max_size=3).map("/".join)
globs = st.lists(st.text("ab/*?", max_size=5), max_size=3)


@given(patterns, globs)
def test_a_subscription_that_is_allowed_matches_no_topic_outside_the_rules(
    pattern: str, allowed: list[str]
) -> None:
    outside = [
        topic
        for topic in topics()
        if matches(tuple(pattern.split("/")), tuple(topic.split("/")))
        and not any(globbed(glob, topic) for glob in topic_globs(allowed))
    ]
    assert not (outside and covers_subscription(allowed)(pattern)), outside[:3]


@pytest.mark.parametrize(
    ("allow", "pattern", "allowed"),
    [
        (["home/*"], b"home/+/temp", True),
        (["home/*"], b"home/*", True),  # which matches `home`, too
        (["home/*"], b"*", False),
        (["home/*"], b"+/temp", False),
        (["home/*"], b"home", True),
        (["home/*"], b"homes", False),
        (["home/?"], b"home/+", False),
        (["*temp"], b"*/temp", True),
        (["*/temp", "temp"], b"*/temp", False),  # no single rule covers it
        (["*/temp"], b"*/temp", False),  # which matches `temp`, too
        (["*/temp"], b"home/*/temp", True),
        (["home/*"], b"home/*/*/temp", True),
        (["home/*"], b"home/+/*", True),
        (["home/*/x"], b"home/*/x", False),  # which matches `home/x`, too
        (["*"], b"*/*", True),
        (["*"], b"*", True),
        (["a/*", "b/*"], b"+/x", False),
        (["home/*"], "home/é/+".encode(), True),
        (["*"], b"\xff", True),
        (["*"], b"home/\xff/+", True),
        (["home/?"], b"home/\xff", True),  # each byte that is not UTF-8 is a character
        (["home/?"], b"home/\xff\xff", False),
        (["home/x"], b"home/\xff", False),
        ([], b"x", False),
    ],
)
def test_a_subscription_is_decided_on_its_pattern(allow: list[str], pattern: bytes, allowed: bool) -> None:
    guard = access(ann=[f"pubsub:read:{each}" for each in allow]).guard("pubsub")
    assert guard.may_subscribe("ann", pattern) is allowed
    assert guard.may_subscribe("ann", pattern) is allowed


@pytest.mark.parametrize(
    ("topic", "allowed"), [(b"home", True), (b"home/x", True), (b"homes", False), (b"", False)]
)
def test_a_topic_rule_with_a_star_behind_a_slash_allows_the_level_above(topic: bytes, allowed: bool) -> None:
    assert access(udp=["pubsub:write:home/*"]).guard("pubsub").may_send_topic("udp", topic) is allowed
    assert topic_globs(["home/*"]) == ["home/*", "home"]


# The users file.

FILE = """
[users.ann]
password = "{hash}"
allow = ["logmq:read:orders.*", "admin:read"]
[users."mail@example.org"]
certificate = true
allow = ["kqmsgq:write:\\"\\\\*"]
[users.anonymous]
"""


def test_a_users_file_is_read_and_written() -> None:
    secret = Secret.make(b"pass word", bytes(range(16)))
    users = parse_users(FILE.format(hash=secret.written()))
    assert list(users) == ["ann", "mail@example.org", "anonymous"]
    assert users["ann"].password is not None
    assert users["ann"].password.fits(b"pass word")
    assert not users["ann"].password.fits(b"pass word ")
    assert users["mail@example.org"].certificate
    assert parse_users(written_users(users)) == users
    assert "pass word" not in repr(users)
    assert secret.key.hex() not in repr(users)


@pytest.mark.parametrize(
    "password",
    ["hunter2", "scrypt$hunter2", "scrypt$16384$8$1$hunter2$hunter2", "scrypt$1$8$1$AAAA$AAAA", ""],
)
def test_a_clear_password_in_the_file_is_refused_and_not_shown(password: str) -> None:
    with pytest.raises(UsersError) as caught:
        parse_users(f'[users.ann]\npassword = "{password}"\n')
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "users.ann.password" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[users.ann", "TOML"),
        ("a = " + "[" * 5000, "TOML"),
        ("users = 1", "users"),
        ("[users]\nann = 1", "users.ann"),
        ("[user.ann]", "user"),
        ('[users."a b"]', "name"),
        (f'[users."{"a" * 65}"]', "name"),
        ("[users.ann]\nallow = 'x'", "users.ann.allow"),
        ("[users.ann]\nallow = ['x']", "users.ann.allow"),
        ("[users.ann]\ncertificate = 1", "users.ann.certificate"),
        ("[users.ann]\npasword = 'x'", "users.ann"),
        ("[users.ann]\npassword = 1", "users.ann.password"),
        ("[users.anonymous]\ncertificate = true", "users.anonymous"),
        ('[users.udp]\npassword = "clear"', "nobody can log in as udp; it has rules alone"),
    ],
)
def test_what_is_wrong_with_a_users_file_is_named(text: str, said: str) -> None:
    with pytest.raises(UsersError, match=said.replace(".", r"\.")):
        parse_users(text)


def test_who_leaves_because_others_do_is_not_looked_at() -> None:
    access = Access({"ann": User("ann", (Rule.parse("logmq:write:*"),))})
    guard = access.guard("logmq", "always")
    looked: list[object] = []

    @attrs.define(eq=False)
    class Looks:
        user: str = "ann"

        def access_changed(self) -> None:
            looked.append(self)
            guard.clients.clear()

        def close_for(self, reason: str) -> None:
            raise AssertionError(reason)

    guard.clients |= {Looks(), Looks()}
    access.replace({"ann": User("ann", (Rule.parse("logmq:read:*"),))})
    assert not guard.may("ann", "write", "orders")
    assert len(looked) == 1
