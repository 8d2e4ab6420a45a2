"""Number of calls to Nova by number of servers: a poll makes three calls, plus one for each further page."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.labs.htcondor import until
from tests.labs.openstack import OpenStack, OpenStackLab, running_openstack
from tests.labs.openstack_stress import Drill, drill

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("openstack"), pytest.mark.matrix]

PAGE = 10
STEPS = (5, 20, 40)
LOOKS = 5


def kinds(cloud: OpenStackLab, after: int) -> Counter[str]:
    """Calls of Nova by what they ask for."""
    names = {"changes-since": "changes", "tags=": "by tag", "/servers/detail": "all", "/limits": "limits"}

    def kind(method: str, target: str) -> str:
        told = next((name for part, name in names.items() if part in target), target.partition("?")[0])
        return told if method == "GET" else f"{method} {told}"

    return Counter(kind(call.method, call.target) for call in cloud.nova.calls(after=after))


def of_looks(lab: Drill) -> Counter[str]:
    """Calls while nothing happens but some looks."""
    seen = lab.cloud.nova.seen
    until(lambda: kinds(lab.cloud, seen)["limits"] >= LOOKS, 60, what=f"{LOOKS} looks", every_s=0.1)
    return kinds(lab.cloud, seen)


def test_a_look_costs_as_many_calls_as_it_has_pages(openstack_programs: OpenStack) -> None:
    with running_openstack(openstack_programs, page=PAGE) as cloud:
        cloud.set_quota(instances=100)
        with drill(cloud, most=STEPS[-1], timeouts={"order_deadline": "60s", "order_confirm": "90s"}) as lab:
            lab.controller.start()
            there = 0
            for servers in STEPS:
                seen = cloud.nova.seen
                lab.submit(servers - there)
                there = servers
                until(lambda: len(lab.servers()) == there, 60, what=f"{there} are there", every_s=0.3)  # noqa: B023
                until(lambda: lab.controller.states()["requested"] == 0, 60, what="all are answered", every_s=0.3)
                lab.controller.ticks(2)
                started = kinds(cloud, seen)
                asked = of_looks(lab)
                print(f"{there} servers: {dict(started)} to start them; {dict(asked)}")
                # Nova offers another page after a full one, which may be empty.
                pages = there // PAGE + 1
                assert asked.keys() == {"limits", "changes", "all"}, "nothing else is asked for"
                # One look may be cut by the begin of the count, and one by its end.
                assert abs(asked["all"] - pages * asked["limits"]) <= pages
                assert asked["changes"] <= pages * (asked["limits"] + 1)
            assert len(cloud.nova.calls("POST", "/servers$")) == STEPS[-1], "one create for each"
            seen = cloud.nova.seen
            lab.over(within_s=120)
            ended = kinds(cloud, seen)
            print(f"to end them: {sum(ended.values())} calls")
            assert ended["by tag"] <= 2 * (STEPS[-1] // PAGE + 1), "they are told to go at once"
