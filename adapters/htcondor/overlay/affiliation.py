"""Accounting group and virtual organisation (VO) of a job, by an attribute and by expressions over its ad."""

from __future__ import annotations

import re

from adapters.htcondor import classad2, classads
from adapters.htcondor.classads import Ad
from adapters.shared.printing import printable

DEFAULT_VO = (
    "ifThenElse(isString(x509UserProxyVOName), x509UserProxyVOName, "
    'ifThenElse(isString(x509UserProxyFirstFQAN), split(x509UserProxyFirstFQAN, "/")[0], '
    "orig_AuthTokenIssuer ?: {group}))"
)
_LONGEST_VO = 80
_LONGEST_MEMBER = 160
_ODD = re.compile(r"[^\w.:/@=+-]", re.ASCII)
"""Characters that no name of a VO needs: with them one name can look like another, or like several."""


class Affiliation:
    """Sources of a job's accounting group and VO: an attribute and two expressions, which may be empty."""

    def __init__(self, group: str, vo: str, member: str = "") -> None:
        self.group = group
        self._vo = classads.expression(vo)
        self._member = classads.expression(member)
        self.attributes = (group, *referred(vo), *referred(member))
        """Attributes of jobs that are looked at."""

    def vo_of(self, ad: Ad) -> str:
        return _ODD.sub("?", _text(self._vo, ad, _LONGEST_VO))

    def member_of(self, ad: Ad) -> str:
        return _text(self._member, ad, _LONGEST_MEMBER)


def referred(expression: str) -> list[str]:
    """Return the attributes that an expression looks at, without their scopes."""
    return [name.rpartition(".")[2] for name in classads.references(expression)]


def _text(expression: classad2.ExprTree | None, ad: Ad, limit: int) -> str:
    found = classads.evaluated(expression, ad, classad2.ClassAd())
    return printable(found, limit) if isinstance(found, str) else ""
