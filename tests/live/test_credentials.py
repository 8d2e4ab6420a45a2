"""A drone token that expires, is foreign, damaged or gone while the controller runs, and its renewal."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from provisioner.answers.status import trouble_kinds
from provisioner.monitoring.metrics import exposition
from tests.labs.controller import SMALL, LabController
from tests.labs.htcondor import IDENTITIES, Pool, gpu_job, until

pytestmark = pytest.mark.timeout(840)


def _credential_troubles(controller: LabController) -> list[tuple[str, str]]:
    found = controller.json("status")["troubles"]
    return [
        (each["severity"], each["text"]) for each in found if each["kind"].startswith("credential-")
    ]


def _metrics(controller: LabController) -> str:
    return exposition(controller.record, "", trouble_kinds).decode()


def _foreign(token: str) -> str:
    head, body, signature = token.split(".")
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))) | {
        "iss": "elsewhere"
    }
    return ".".join(
        (
            head,
            base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("="),
            signature,
        )
    )


@pytest.mark.matrix
def test_a_dead_drone_token_is_told_within_a_tick_and_its_renewal_too(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.sites = (SMALL,)
    controller.start()
    good = pool.token("drone", IDENTITIES["drone"])
    cases = {
        "expired at": pool.token("drone", IDENTITIES["drone"], 1),
        "issuer is elsewhere": _foreign(good),
        "no IDTOKEN": "garbage",
        "cannot be read": None,
    }
    controller.ticks(2)
    assert _credential_troubles(controller) == []
    job = pool.submit(gpu_job(1))
    pool.remove(job)
    for number, (words, text) in enumerate(cases.items(), 1):
        file = controller.secret("drone.token", (text or "") + "\n")
        if text is None:
            file.unlink()
        controller.ticks(2)  # the first may have begun before
        [(severity, told)] = _credential_troubles(controller)
        assert severity == "critical" and words in told, told
        assert 'provisioner_credential_usable{name="drone_token",scope="overlay"} 0.0' in _metrics(
            controller
        )
        assert (
            'provisioner_troubles{kind="credential-unusable",severity="critical"} 1.0'
            in _metrics(controller)
        )
        job, before = pool.submit(gpu_job(1)), len(controller.drones())
        controller.ticks(4)
        assert len(controller.drones()) == before, "nothing is started with it"
        pool.remove(job)
        controller.secret("drone.token", good + "\n")
        controller.ticks(2)
        assert _credential_troubles(controller) == []
        assert controller.log().count("credential.renewed") == number


def test_a_token_that_the_pool_refuses_is_told_by_its_drones_and_a_good_one_lifts_the_ban(
    lab: tuple[Pool, LabController],
) -> None:
    pool, controller = lab
    controller.sites = (SMALL,)
    controller.start()
    good = pool.token("drone", IDENTITIES["drone"])
    head, body, signature = good.split(".")
    controller.secret("drone.token", f"{head}.{body}.{signature[::-1]}\n")
    controller.ticks(2)
    job = pool.submit(gpu_job(1))

    def told() -> str:
        return next(
            (
                t["text"]
                for t in controller.json("status")["troubles"]
                if "refused by the pool" in t["text"]
            ),
            "",
        )

    text = until(told, 90, what="`status` has the pool's reason", every_s=0.5)
    assert "AUTHENTICATE" in text or "DENIED" in text, text
    controller.secret("drone.token", good + "\n")
    until(lambda: pool.statuses(job) in ([], [4]), 120, what="the job is done")
    assert not told()
