"""Site adapters that a test installs as distributions of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

CLOUD = """
from pydantic import BaseModel, Field
class Config(BaseModel):
    model_config = {"extra": "forbid"}
    speed: int = 0
    project: str = Field(default="", json_schema_extra={"places_drones": True})
class Cloud:
    Config = Config
    def poll(self): ...
    def start(self): ...
    def stop(self): ...
"""
InstallAdapter = Callable[..., str]


@pytest.fixture
def install_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallAdapter:
    """Install ``source`` as a module with site adapter ``name``; return the module's name."""

    def install(name: str, source: str = CLOUD, method: str = "") -> str:
        """``method``: a further method of ``Config``, indented by four."""
        module = f"adapter_module_{name}"
        (tmp_path / f"{module}.py").write_text(source.replace("class Cloud:", f"{method}\nclass Cloud:"))
        egg = tmp_path / f"{name}-1.0.dist-info"
        egg.mkdir()
        (egg / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (egg / "entry_points.txt").write_text(f"[provisioner.sites]\n{name} = {module}:Cloud\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        return module

    return install
