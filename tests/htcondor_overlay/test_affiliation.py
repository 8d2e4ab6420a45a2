"""The VO of a job: by its proxy, its token or its group, and whatever a user writes there is a short plain name."""

from __future__ import annotations

import pytest

from adapters.htcondor.overlay import job_classes
from adapters.htcondor.overlay.affiliation import Affiliation
from tests.htcondor_overlay.jobs import AFFILIATION, job
from tests.htcondor_overlay.test_classes import classes

FQAN = '"/cms/Role=pilot/Capability=NULL"'
ISSUER = '"https://cms-auth.example.org/"'
MEBIBYTE = f'"{"c" * (1 << 20)}"'


@pytest.mark.parametrize(
    ("attributes", "vo"),
    [
        ({}, ""),
        ({"AcctGroup": '"group_cms"'}, "group_cms"),
        (
            {"orig_AuthTokenIssuer": ISSUER, "AcctGroup": '"group_cms"'},
            "https://cms-auth.example.org/",
        ),
        ({"x509UserProxyFirstFQAN": FQAN, "orig_AuthTokenIssuer": '"https://atlas"'}, "cms"),
        ({"x509UserProxyVOName": '"cms"', "x509UserProxyFirstFQAN": '"/atlas"'}, "cms"),
        ({"x509UserProxyVOName": "17", "AcctGroup": '"g"'}, "g"),
        ({"x509UserProxyVOName": "error", "AcctGroup": '"g"'}, "g"),
        ({"orig_AuthTokenIssuer": "17"}, ""),
        ({"orig_AuthTokenIssuer": "MY.orig_AuthTokenIssuer"}, ""),
        ({"orig_AuthTokenIssuer": MEBIBYTE}, "c" * 77 + "..."),
        ({"orig_AuthTokenIssuer": r'"cms\n"'}, "cms?"),
        ({"orig_AuthTokenIssuer": '"cms "'}, "cms?"),
        ({"orig_AuthTokenIssuer": r'"cms\"} 1"'}, "cms???1"),
        ({"orig_AuthTokenIssuer": '"c\u043cs\u202e\u200b\x1b[31m"'}, "c?s????31m"),
    ],
)
def test_the_vo_by_the_first_source_that_a_job_has(attributes: dict[str, str], vo: str) -> None:
    (found,) = classes(job(**attributes))
    assert (found.vo, found.vo_member) == (vo, "")


def test_an_operator_says_what_the_vo_and_its_member_are() -> None:
    of = Affiliation("AcctGroup", 'split(Owner, "0")[0]', 'strcat(orig_AuthTokenIssuer, " ", Sub)')
    wanted = job_classes.group_attributes(of, "true")
    assert {"AcctGroup", "Owner", "orig_AuthTokenIssuer", "Sub"} <= {*wanted}
    ad = job(Owner='"cms001"', orig_AuthTokenIssuer=ISSUER, Sub=r'"anna\n=1+1"')
    found = job_classes.group(ad, "s1", of)
    assert found is not None and found.vo == "cms"
    assert found.vo_member == "https://cms-auth.example.org/ anna =1+1"


def test_a_vo_is_a_class_of_its_own_and_shares_verdicts() -> None:
    cms, atlas = (job(orig_AuthTokenIssuer=name) for name in ('"cms"', '"atlas"'))
    one, two = (job_classes.group(ad, "s1", AFFILIATION) for ad in (cms, atlas))
    assert one is not None and two is not None and one.key != two.key and one.shape == two.shape
    assert [each.vo for each in classes(cms, atlas)] == ["cms", "atlas"]
    picky = "TARGET.Issuer == MY.orig_AuthTokenIssuer"
    three = job_classes.group(
        job(orig_AuthTokenIssuer='"cms"', Requirements=picky), "s1", AFFILIATION
    )
    four = job_classes.group(
        job(orig_AuthTokenIssuer='"atlas"', Requirements=picky), "s1", AFFILIATION
    )
    assert three is not None and four is not None and three.shape != four.shape
