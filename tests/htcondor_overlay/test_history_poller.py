"""The history reader after a failure: a quick one is repeated soon, a slow one later, and the notice says when."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from adapters.htcondor.overlay.history import HISTORY_RETRY_S, HistoryPoller, HistoryView
from adapters.htcondor.overlay.settings import HTCondorConfig
from adapters.htcondor.tokens import ClientDirectory
from provisioner.interfaces import UnavailableError


class Reader:
    """A history reader whose answers take time on a clock that is set by hand."""

    def __init__(self) -> None:
        self.now, self.takes_s, self.fails, self.calls = 1000.0, 0.0, False, 0

    async def call(self, *_: object, deadline_s: float) -> HistoryView:
        self.calls += 1
        self.now += self.takes_s
        if self.fails:
            raise UnavailableError("no answer")
        return HistoryView(())


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    made = Reader()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    return made


@pytest.fixture
async def history(reader: Reader, tmp_path: Path) -> HistoryPoller:
    options = {
        "collector": "pool.test:9618",
        "trust_domain": "pool.test",
        "token_directory": str(tmp_path),
    }
    config = HTCondorConfig.model_validate(
        {**options, "drone_token": {"file": str(tmp_path / "drone")}}
    )
    made = HistoryPoller(config, "kit", ClientDirectory("pool", config))
    await made.close()
    made._child = reader  # type: ignore[assignment]
    return made


async def test_a_quick_failure_is_asked_again_soon_and_its_cure_is_seen(
    reader: Reader, history: HistoryPoller
) -> None:
    reader.fails, reader.takes_s = True, 0.1
    (notice,) = (await history.newest(True, ())).notices
    assert "no answer; asked again at " in notice
    reader.fails, reader.now = False, reader.now + 4.0
    assert (await history.newest(True, ())).notices == ()
    assert reader.calls == 2


async def test_a_slow_failure_is_not_repeated_at_once(
    reader: Reader, history: HistoryPoller
) -> None:
    reader.fails, reader.takes_s = True, 10.0
    await history.newest(True, ())
    reader.now += HISTORY_RETRY_S - 1
    assert (await history.newest(True, ())).notices and reader.calls == 1
    reader.now += 2
    await history.newest(True, ())
    assert reader.calls == 2


async def test_the_time_up_to_which_completed_jobs_are_known_outlives_a_failure(
    reader: Reader, history: HistoryPoller
) -> None:
    known = await history.newest(True, ())
    assert known.at > 0 and known.completions == ()
    reader.fails, reader.now = True, reader.now + 61
    failed = await history.newest(True, ())
    assert failed.completions is None and failed.at == known.at
