"""Makes peers' bytes harmless to read in a log or on a terminal.

A name with a newline must not forge a log line. A name with an escape sequence must not repaint a terminal. A
name with a bidirectional mark must not show its letters in another order.
"""

import re

NAME_MAX = 256
"""Characters of one value that a log line shows; longer ones are cut (PROMISES: names cut at 256)."""

# C0 and C1 controls and DEL; soft hyphen and zero-width characters; the bidirectional marks, embeddings,
# overrides and isolates; line and paragraph separators; tags; surrogates, which cannot be written at all.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f\ud800-\udfff]"
)
_HARMFUL_OR_BACKSLASH = re.compile(f"{_HARMFUL.pattern[:-1]}\\\\]")


def escape(text: str) -> str:
    """Return `text` with everything invisible or misleading as `\\n`, `\\x1b`, `\\u202e`."""
    return _HARMFUL.sub(_code, text)


def escape_name(value: str | bytes) -> str:
    """Return a peer's name on one line, cut at NAME_MAX characters, with backslashes doubled.

    Bytes are read as UTF-8; other bytes are shown as `\\xff`. More bytes than a name may have are a payload,
    of which only the size is shown.
    """
    if isinstance(value, bytes):
        if len(value) > 4 * NAME_MAX:
            return f"<{len(value)} bytes>"
        value = value.decode(errors="surrogateescape")
    cut = "…" if len(value) > NAME_MAX else ""
    return _HARMFUL_OR_BACKSLASH.sub(_code, value[:NAME_MAX]) + cut


def _code(match: "re.Match[str]") -> str:
    character = match[0]
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # surrogateescape: a byte that was not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    short = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}.get(character)
    if short:
        return short
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
