"""Accounting groups out of ads as a real negotiator leaves them at the collector (HTCondor 25.0, recorded)."""

from __future__ import annotations

from dataclasses import replace

import classad2
import pytest

from adapters.htcondor.classads import Ad
from adapters.htcondor.overlay.job_classes import accounting_groups, quota_warnings, user_priorities
from provisioner.model import Group, JobClass


def recorded(
    name: str, parent: str, quota: float, effective: float, surplus: str = "no", **more: object
) -> Ad:
    """An ad as a real negotiator leaves it, without what nobody reads."""
    known = {"Name": name, "AccountingGroup": parent, "IsAccountingGroup": True, "Priority": 500.06}
    known |= {
        "ConfigQuota": quota,
        "EffectiveQuota": effective,
        "SubtreeQuota": effective,
        "SurplusPolicy": surplus,
    }
    return classad2.ClassAd({**known, "ResourcesUsed": 0, "WeightedResourcesUsed": 0.0, **more})


ADS = [
    recorded("<none>", "<none>", 0.0, 0.0, "byquota"),
    recorded("group_dyn", "<none>", 0.3, 0.0),
    recorded("guests", "<none>", 2.0, 2.0, "byquota"),
    recorded("physics", "<none>", 12.0, 12.0),
    recorded(
        "physics.atlas",
        "physics",
        4.0,
        4.0,
        ResourcesUsed=1,
        WeightedResourcesUsed=2.0,
        Requested=6.0,
    ),
    classad2.ClassAd(
        {
            "Name": "physics.atlas.bob@own.test",
            "AccountingGroup": "physics.atlas",
            "IsAccountingGroup": False,
        }
        | {"Priority": 500.06, "ResourcesUsed": 1, "WeightedResourcesUsed": 2.0}
    ),
]
"""One job of physics.atlas, of two CPUs and a GPU, runs in a pool of two CPUs; two more wait."""

ATLAS = JobClass("a", 1000, 2, 128, waiting=2, running=1, group="physics.atlas")


def of(name: str, *classes: JobClass, weight: str = "cpus") -> Group:
    return next(group for group in accounting_groups(ADS, classes, weight) if group.name == name)


def ad(**changes: object) -> classad2.ClassAd:
    made = classad2.ClassAd(dict(ADS[4]))
    for name, value in changes.items():
        made[name] = value
    return made


def test_the_root_and_the_users_are_no_groups() -> None:
    names = [group.name for group in accounting_groups(ADS, [], "cpus")]
    assert names == ["group_dyn", "guests", "physics", "physics.atlas"]


def test_cpus_of_a_quota_become_gpus_by_what_the_groups_jobs_ask_for() -> None:
    assert of("physics.atlas", ATLAS) == Group(
        "physics.atlas", 2000, 1000, surplus=False, priority=500.06
    )
    assert of("physics", ATLAS) == Group("physics", 6000, 1000, surplus=False, priority=500.06), (
        "with its sub-groups"
    )
    assert of("physics.atlas", ATLAS, weight="gpus").quota_milli == 4000
    (slotless,) = accounting_groups([ad(EffectiveQuota=0.0, SubtreeQuota=0.0)], [ATLAS], "cpus")
    assert slotless.quota_milli == 2000, (
        "without slots the negotiator works out no quotas, and they hold all the same"
    )


def test_the_priorities_of_users_are_found_by_the_names_of_their_jobs() -> None:
    def user(name: str, priority: object, group: str = "<none>") -> classad2.ClassAd:
        return classad2.ClassAd(
            {
                "Name": name,
                "AccountingGroup": group,
                "IsAccountingGroup": False,
                "Priority": priority,
            }
        )

    ads = [
        *ADS,
        user("alice@own.test", 700.0),
        user("eve@own.test", "text"),
        user("gone@own.test", 600.0),
    ]
    ads += [user("guests.alice@own.test", 900.0, "guests")]
    classes = [replace(ATLAS, owner=owner) for owner in ("bob", "alice", "eve")]
    assert user_priorities(ads, classes) == {"bob": 500.06, "alice": 700.0}, (
        "of several groups the larger share"
    )
    named = [replace(ATLAS, owner="physics.atlas.bob")]
    assert user_priorities(ads, named) == {"physics.atlas.bob": 500.06}, (
        "an overlay may name users with their group"
    )


def test_jobs_of_several_shapes_count_on_average_and_those_without_a_gpu_do_not() -> None:
    large = replace(ATLAS, id="b", cpus=6, waiting=3, running=0, group="Physics.Atlas")
    none = replace(ATLAS, id="c", gpu_milli=0, cpus=50)
    # three GPUs ask for 6 CPUs, three others for 18: 4 for each
    assert of("physics.atlas", ATLAS, large, none).quota_milli == 1000
    assert of("guests", ATLAS, large, none).quota_milli == 2000, (
        "of a group without jobs nothing is known"
    )


def test_a_dynamic_quota_is_no_limit_and_a_doubt_if_there_is_no_surplus() -> None:
    assert of("group_dyn", ATLAS).quota_milli is None and of("guests").surplus
    (line,) = quota_warnings(ADS, "cpus")
    assert "group_dyn" in line
    (all_of_it,) = accounting_groups([ad(ConfigQuota=1.0)], [], "cpus")
    assert all_of_it.quota_milli is None
    (one_gpu,) = accounting_groups([ad(ConfigQuota=1.0)], [], "gpus")
    assert one_gpu.quota_milli == 1000


@pytest.mark.parametrize("broken", ["nan", "text", -5.0])
def test_nonsense_is_a_quota_of_nothing(broken: object) -> None:
    value = classad2.ExprTree('real("NaN")') if broken == "nan" else broken
    (group,) = accounting_groups([ad(ConfigQuota=value)], [ATLAS], "cpus")
    assert group.quota_milli == 0
