"""What the power trial keeps where a promise is broken; it needs no loop device here."""

from pathlib import Path
from typing import Self

import attrs
import pytest

from tests.trials import power
from tests.trials.folder import BrokenPromiseError


class _Volume:
    """A folder; nothing of it can be read between a cut and the next mount."""

    def __init__(self, kind: str, place: Path) -> None:
        self.root = place / "mnt"
        self._away = place / "away"
        (self.root / "data").mkdir(parents=True)
        (self.root / "data" / "journal").write_text("what there was")

    def make(self) -> None:
        pass

    def mount(self) -> None:
        if self._away.exists():
            self._away.rename(self.root)

    def unmount(self) -> None:
        pass

    def cut(self) -> None:
        self.root.rename(self._away)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@attrs.define(eq=False)
class _Folder(power.PowerFolder):
    """Its load has found something by the time of the cut."""

    def recover(self, *_: object) -> None:  # type: ignore[override]
        self.volume.cut()
        raise BrokenPromiseError(["delivered twice"])


def test_the_folder_is_kept_where_the_load_finds_the_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(power, "Volume", _Volume)
    monkeypatch.setattr(power, "PowerFolder", _Folder)
    tally = power.run_lane(power.Plan("ext4", 5, "7/0", (("always",),), tmp_path))
    (fault,) = tally.verdict.faults
    assert "delivered twice" in fault
    assert (tmp_path / "7-0" / "broken" / "journal").read_text() == "what there was"
