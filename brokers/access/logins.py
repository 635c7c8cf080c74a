"""The queue of logins whose passwords wait to be checked, in threads.

A check takes about 50 ms of a processor, without the interpreter's lock. Addresses are served in rotation, so
whoever tries a thousand passwords delays only his own next login. An address that has failed often
(`shared.net.strangers`) waits a second for each answer, and one thread serves all such addresses. A
successful login is remembered as a keyed hash until the users change. The same login on many connections of
an address, as after a restart, is checked once.
"""

import hashlib
import hmac
import os
import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable

import attrs
import trio

from shared.access import NOBODYS, Access, Guard, Secret, User
from shared.net.strangers import Strangers, address_of_peer
from shared.storage.threads import Threads
from shared.task_turns import TaskTurn

AT_ONCE = max(1, min(4, (os.cpu_count() or 1) // 2))
"""Passwords of usual addresses that are checked at a time; each takes 16 MiB."""

SLOW_SECONDS = 1.0
WAITING_MAX = 10_000
WAITING_ADDRESS_MAX = 5_000
WAITING_SLOW_MAX = 64
"""Bounds on waiting logins: in all, different ones of one address, and the same for a slow address (one that
failed often). Above an address's bound a login is refused unchecked, a second later; above the total, at
once. Clients of one address that return all at once, each with its own password, wait for each other."""
REMEMBERED_MAX = 10_000
"""Remembered logins. At this number all are forgotten, and each costs one more check."""
SLOW_RESTS = 7
"""Rests of as many check times: slow addresses get one part in eight of a processor while others are served.
On a machine with two processors a flood would otherwise take one for good."""
USER_NAME_MAX = 65
"""Longer than any user's name: it is only used to compare."""
PASSWORD_BYTES_MAX = 1024
"""Longer passwords are refused unchecked: the cost of hashing grows with the length."""


@attrs.define(eq=False)
class _Login:
    user: str
    password: bytes = attrs.field(repr=False)
    address: str
    done: Callable[[bool], None]
    digest: bytes = attrs.field(repr=False)
    """Keyed hash of user and password."""


@attrs.define(eq=False)
class _Line:
    """Logins that wait to be checked, by address; addresses are served in rotation."""

    waiting: OrderedDict[str, deque[_Login]] = attrs.field(factory=OrderedDict)
    more: trio.Event = attrs.field(factory=trio.Event)


class Logins:
    """Checks passwords for an `Access` while `run` runs."""

    def __init__(
        self,
        access: Access,
        strangers: Strangers | None = None,
        fits: Callable[[Secret, bytes], Awaitable[bool]] | None = None,
    ) -> None:
        """`fits`: whether a password is the secret's, in place of threads."""
        self._access = access
        self._strangers = strangers or Strangers()
        self._key = secrets.token_bytes(32)
        self._known: set[bytes] = set()
        self._known_for = access.users
        self._line, self._slow_line = _Line(), _Line()
        self._held: Counter[str] = Counter()  # by address: different logins that wait or are being checked
        self._held_total = 0
        # By address and digest: identical logins that wait; the first of them is in line.
        self._same: dict[tuple[str, bytes], list[_Login]] = {}
        # When each is due, and whether it is checked then or refused.
        self._late: deque[tuple[float, _Login, bool]] = deque()
        self._more_late = trio.Event()
        self._runs = False
        self._fits = fits or _fits_in_thread(Threads())
        access.check_password = self.check

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Check logins until cancelled."""
        async with trio.open_nursery() as nursery:
            self._runs = True
            try:
                for _ in range(AT_ONCE):
                    nursery.start_soon(self._work, self._line, 0)
                nursery.start_soon(self._work, self._slow_line, SLOW_RESTS)
                nursery.start_soon(self._answer_late)
                task_status.started()
                await trio.sleep_forever()
            finally:
                self._runs = False

    def check(self, user: str, password: bytes, peer: str, done: Callable[[bool], None]) -> None:
        """`shared.access.CheckPassword`."""
        if not self._runs or len(password) > PASSWORD_BYTES_MAX or self._held_total >= WAITING_MAX:
            done(False)
            return
        address = address_of_peer(peer)
        login = _Login(user, password, address, done, self._digest(user, password))
        slow = self._strangers.fails_often(address)
        if not slow and self._is_known(login):
            done(True)
            return
        full = self._held[address] >= (WAITING_SLOW_MAX if slow else WAITING_ADDRESS_MAX)
        if not slow and (address, login.digest) in self._same:
            full = False
        self._held_total += 1
        if slow or full:
            self._put_off(login, looked_at=not full)
        else:
            self._put(login)

    async def refuse(self, guard: Guard, peer: str) -> None:
        """Count a failed login by other means than a password, and delay its answer like any other."""
        address = address_of_peer(peer)
        slow = self._strangers.fails_often(address)
        self._strangers.count_failed_login(address)
        guard.login_failed("", peer)
        if slow:
            await trio.sleep(SLOW_SECONDS)

    def _put_off(self, login: _Login, *, looked_at: bool) -> None:
        """Delay a login by a second; then it is checked, or refused."""
        if looked_at:
            self._hold(login.address, 1)
        else:
            self._strangers.count_failure()
        self._late.append((trio.current_time() + SLOW_SECONDS, login, looked_at))
        self._more_late.set()

    def _put(self, login: _Login) -> None:
        """Answer a remembered login; let any other wait to be checked, with identical ones."""
        key = (login.address, login.digest)
        if self._is_known(login):
            self._held_total -= 1
            login.done(True)
        elif key in self._same:
            self._same[key].append(login)
        else:
            self._same[key] = [login]
            self._hold(login.address, 1)
            line = self._slow_line if self._strangers.fails_often(login.address) else self._line
            line.waiting.setdefault(login.address, deque()).append(login)
            line.more.set()

    async def _answer_late(self) -> None:
        while True:
            if not self._late:
                self._more_late = trio.Event()
                await self._more_late.wait()
            await trio.sleep_until(self._late[0][0])
            turn = TaskTurn()
            while self._late and self._late[0][0] <= trio.current_time():
                _, login, looked_at = self._late.popleft()
                if looked_at:
                    self._hold(login.address, -1)
                    self._put(login)
                else:
                    self._held_total -= 1
                    login.done(False)
                await turn.item()

    def _hold(self, address: str, count: int) -> None:
        self._held[address] += count
        if not self._held[address]:
            del self._held[address]

    async def _work(self, line: _Line, rests: int) -> None:
        """Check what waits in line. While others are served, rest `rests` times as long as a check took."""
        while True:
            if not line.waiting:
                if line.more.is_set():
                    line.more = trio.Event()
                await line.more.wait()
                continue
            address, logins = line.waiting.popitem(last=False)
            slow = self._strangers.fails_often(address)
            crowded = slow and len(logins) > WAITING_SLOW_MAX
            if slow and not crowded and line is self._line and self._strangers.is_flood():
                # The address has become slow since its logins came.
                logins.extend(self._slow_line.waiting.pop(address, ()))
                self._slow_line.waiting[address] = logins
                self._slow_line.more.set()
                continue
            login = logins.popleft()
            if logins:
                line.waiting[address] = logins  # to the end of the rotation
            if crowded:
                for each in self._same.pop((address, login.digest)):
                    self._put_off(each, looked_at=False)
                self._hold(address, -1)
                await trio.sleep(0)
                continue
            user = self._user(login)
            secret = NOBODYS if user is None or user.password is None else user.password
            began = trio.current_time()
            fits = await self._fits(secret, login.password)
            seconds = trio.current_time() - began
            same = self._same.pop((address, login.digest))
            self._hold(address, -1)
            self._held_total -= len(same)
            turn = TaskTurn()
            for each in same:
                await turn.item()
                # The users may have changed during the check: only a password that is valid now counts.
                now = self._user(each)
                self._answer(each, fits and now is not None and now.password == secret)
            if rests and not self._strangers.are_alone():
                await trio.sleep(rests * seconds)

    def _answer(self, login: _Login, fits: bool) -> None:
        if fits:
            self._forget_if_changed()
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known.add(login.digest)
        else:
            self._strangers.count_failed_login(login.address)
        login.done(fits)

    def _user(self, login: _Login) -> User | None:
        return (self._access.users or {}).get(login.user)

    def _is_known(self, login: _Login) -> bool:
        self._forget_if_changed()
        return login.digest in self._known

    def _forget_if_changed(self) -> None:
        if self._known_for is not self._access.users:
            self._known_for = self._access.users
            self._known.clear()

    def _digest(self, user: str, password: bytes) -> bytes:
        name = user[:USER_NAME_MAX].encode()
        return hmac.digest(self._key, name + b"\0" + password, hashlib.sha256)


def _fits_in_thread(in_thread: Threads) -> Callable[[Secret, bytes], Awaitable[bool]]:
    async def fits(secret: Secret, password: bytes) -> bool:
        return bool(await in_thread(secret.fits, password))

    return fits
