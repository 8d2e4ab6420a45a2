"""A compute element before a pool: a schedd and a JobRouter, which is what HTCondor-CE is made of.

A router that does not run as root routes the jobs of its own account only, so their owner is that
account.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.labs.htcondor import Condor, Pool, account, gpu_job, lab_directory, running

ROUTE_GROUP = "group_cms"
ROUTED_OWNER = pwd.getpwuid(account().uid).pw_name

EVERYBODY = f"""
ALLOW_WRITE = *@$(TRUST_DOMAIN)
ALLOW_ADVERTISE_SCHEDD = *@$(TRUST_DOMAIN)
QUEUE_SUPER_USER_MAY_IMPERSONATE = .*
JOB_TRANSFORM_NAMES = local
JOB_TRANSFORM_local @=end
  REQUIREMENTS Owner != "{ROUTED_OWNER}"
  DELETE orig_AuthTokenIssuer
@end
PROTECTED_JOB_ATTRS = orig_AuthTokenIssuer
"""
"""Anybody may submit; only the router says where a job comes from. From docs/how-to/behind-a-ce.md."""
ROUTER = f"""
DAEMON_LIST = $(DAEMON_LIST) JOB_ROUTER
JOB_ROUTER_NAME = router
JOB_ROUTER_POLLING_PERIOD = 1
JOB_ROUTER_SOURCE_JOB_CONSTRAINT = WantRoute is true
JOB_ROUTER_ROUTE_NAMES = pool
JOB_ROUTER_ROUTE_pool @=end
  UNIVERSE VANILLA
  SET AcctGroup "{ROUTE_GROUP}"
  SET RequestGPUs 1
  DELETE WantRoute
  DELETE orig_AuthTokenIssuer
  COPY AuthTokenIssuer orig_AuthTokenIssuer
@end
"""


SECOND = """
SCHEDD_NAME = ce@ce.test
UID_DOMAIN = overlay.test
FLOCK_TO = {collector}
JOB_ROUTER_SCHEDD2_NAME = pool@overlay.test
JOB_ROUTER_SCHEDD2_POOL = {collector}
JOB_ROUTER_SCHEDD2_SPOOL = {spool}
"""
"""A schedd with a collector of its own that routes into the pool's. As it flocks to the pool, the
pool's collector lists it as well."""


@contextmanager
def running_ce(condor: Condor, *, schedds: int) -> Iterator[tuple[Pool, Pool]]:
    """A compute element and its pool; with one schedd they are the same."""
    name = "SCHEDD_NAME = pool@overlay.test\n"
    with lab_directory("ce") as root:
        if schedds == 1:
            pool = Pool(root, condor, config=EVERYBODY + name + ROUTER)
            pool.client(ROUTED_OWNER)
            with running(pool):
                yield pool, pool
            return
        pool = Pool(root, condor, config=EVERYBODY + name)
        second = SECOND.format(collector=pool.collector, spool=pool.dir / "spool")
        ce = Pool(root, condor, "ce", "COLLECTOR SCHEDD", EVERYBODY + ROUTER + second)
        pool.client(ROUTED_OWNER)
        ce.client(ROUTED_OWNER)
        ce.write_token("pool", ce.dir / "etc/tokens", pool.token(ROUTED_OWNER))
        with running(pool), running(ce):
            yield ce, pool


def tokens(ce: Pool, pool: Pool) -> Path:
    """A directory with tokens of the administrators of both."""
    directory = pool.dir / "clients/both/tokens"
    for each in (ce, pool):
        each.write_token(each.name, directory, each.token("admin"))
    return directory


def submit(ce: Pool, n: int, more: str = "", **how: Any) -> int:
    """Submit jobs of pilots to the compute element; its routes ask for a GPU."""
    more = f"+WantRoute = true\n{more}"
    return ce.submit(gpu_job(gpus=0, more=more, n=n, **how), identity=ROUTED_OWNER)
