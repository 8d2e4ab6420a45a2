"""What every adapter promises, as tests: subclass a suite in a test module and give it a ``world`` fixture.

    class TestHere(SiteContract):
        @pytest.fixture
        def world(self, tmp_path: Path) -> SiteWorld: ...

Needs ``pytest`` and ``pytest-asyncio``, which the package itself does not.
"""

import pytest

for _suite in ("hooks", "sites", "overlays", "waiting"):
    pytest.register_assert_rewrite(f"{__name__}.{_suite}")

from provisioner.adapter_tests.hooks import NotSupportedError  # noqa: E402 (after the line above)
from provisioner.adapter_tests.overlays import OverlayContract, OverlayWorld  # noqa: E402
from provisioner.adapter_tests.sites import SiteContract, SiteWorld  # noqa: E402
from provisioner.adapter_tests.waiting import eventually  # noqa: E402

__all__ = ["NotSupportedError", "OverlayContract", "OverlayWorld", "SiteContract", "SiteWorld", "eventually"]
