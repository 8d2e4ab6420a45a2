"""What every adapter promises, as tests: subclass a suite in a test module and give it a ``world`` fixture.

    class TestHere(SiteContract):
        @pytest.fixture
        def world(self, tmp_path: Path) -> SiteWorld: ...

Needs ``pytest`` and ``pytest-asyncio``, which the package itself does not.
"""

import pytest

for _suite in ("hooks", "sites", "overlays", "waiting"):
    pytest.register_assert_rewrite(f"{__name__}.{_suite}")

from provisioner.contract.hooks import NotSupported  # noqa: E402 (after the line above)
from provisioner.contract.overlays import OverlayContract, OverlayWorld  # noqa: E402
from provisioner.contract.sites import SiteContract, SiteWorld  # noqa: E402
from provisioner.contract.waiting import eventually  # noqa: E402

__all__ = ["NotSupported", "OverlayContract", "OverlayWorld", "SiteContract", "SiteWorld", "eventually"]
