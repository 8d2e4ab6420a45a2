"""Upgrade, removal, installation and downgrade of the deb, below drones that go on."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.packages.conftest import inside


def test_drones_and_record_outlive_upgrade_removal_and_downgrade(
    packages: dict[str, Path], before: Path, root: Path
) -> None:
    shutil.copy(packages["deb"], root / "root/now.deb")
    shutil.copy(before, root / "root/before.deb")
    shutil.copy(Path(__file__).with_name("upgrade_story.py"), root / "root/story.py")
    assert "20 drones went on" in inside(root, "python3 /root/story.py")
