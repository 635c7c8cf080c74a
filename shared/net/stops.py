"""Why a session holds its input back."""


class Stop:
    """Reasons to hold input back, as bits: several may hold at once. A protocol's own start at `FIRST_OWN`.

    Plain ints: an operation on an `IntFlag` takes twenty times as long, and every message tests these.
    """

    REPLIES = 1
    """Too many answers are pending."""
    OUTBOX = 2
    """The peer does not read its answers."""
    STORE = 4
    """The store is congested: the disk does not keep up."""
    OTHERS = 8
    """Other connections are served first."""
    LOGIN = 16
    """A password is being checked."""
    FIRST_OWN = 1 << 8


SHORTAGES = ("memory", "the disk")
"""Words of reasons that are the server's: it is short of what each begins with."""

STOP_WORDS = {
    Stop.REPLIES: "answers that wait",
    Stop.OUTBOX: "its peer to read",
    Stop.STORE: "the disk",
    Stop.OTHERS: "its turn",
    Stop.LOGIN: "its login",
}
