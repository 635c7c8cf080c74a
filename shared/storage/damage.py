"""What was found damaged in a store's files: each place is counted once and logged once."""

import structlog

logger = structlog.stdlib.get_logger("brokers.storage")


class Damage:
    """The places. `report` may be called from any thread; `len` is how many there are."""

    def __init__(self) -> None:
        self._places: set[tuple[int, str, int]] = set()

    def __len__(self) -> int:
        return len(self._places)

    def in_log(self, log_id: int, path: str, offset: int, length: int) -> None:
        """What stands there is not what was written."""
        if self._is_new(log_id, path, offset):
            logger.error("damaged bytes", path=path, offset=offset, length=length)

    def in_index(self, log_id: int, path: str, offset: int, covered_bytes: int) -> None:
        """Index entries from `offset` of `path` on were not good; what they cover is served all the same."""
        if self._is_new(log_id, path, offset):
            logger.error(
                "damaged index: made anew from its log, which is served, unverified; look at the disk",
                path=path,
                offset=offset,
                covered_bytes=covered_bytes,
            )

    def in_file(self, path: str, text: str | None = None) -> None:
        """A whole file is not what it was; `text` says what that means, unless somebody else does."""
        if self._is_new(0, path, 0) and text is not None:
            logger.error(text, path=path)

    def _is_new(self, log_id: int, path: str, offset: int) -> bool:
        place = log_id, path, offset
        if place in self._places:
            return False
        self._places.add(place)
        return True
