"""What the site asks of a cloud: a dozen calls, typed. The way to them is ``link.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, Self

from adapters.openstack.records import Flavor, Image, Limits, Port, Server, ServerAction, Volume


class Cloud(Protocol):
    """One project of one cloud. Reads raise UnavailableError or AuthError, and may be tried again within their
    deadline;
    writes are tried once, and raise Unsure where nobody knows what came of them."""

    project: str
    """Id of the project that we are in; empty before the first login."""
    user: str
    """Id of who we are."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def servers(self, *, tag: str = "", name: str = "", since: float = 0.0) -> Sequence[Server]:
        """All pages of the project's servers: that carry ``tag``, whose name matches the regular expression ``name``;
        with ``since`` those that have changed after it, deleted ones included (their tags are gone). Without any of
        these down cells' servers come as UNKNOWN; with one of them they do not come. UnavailableError if a page is
        missing."""
        ...

    async def create(self, server: Mapping[str, Any], hints: Mapping[str, str], *, deadline_s: float) -> str:
        """POST /servers; the new server's id. RejectedError with QUOTA, CAPACITY, CONFIG, THROTTLED; Unsure."""
        ...

    async def delete(self, server_id: str) -> None:
        """Already gone is done."""
        ...

    async def shut_down(self, server_id: str) -> None:
        """os-stop: the guest is told to shut down, and cut off after the image's or Nova's shutdown time-out. Gone or
        not running any more is done; RejectedError if it does not run yet."""
        ...

    async def console(self, server_id: str, lines: int) -> str:
        """The end of what it said on its console; empty where there is none."""
        ...

    async def actions(self, server_id: str) -> Sequence[ServerAction]:
        """What was done with it, newest first; empty where it is gone."""
        ...

    async def limits(self) -> Limits: ...

    async def flavors(self) -> Sequence[Flavor]:
        """All that the project may use, with extra specs."""
        ...

    async def images(self, name_or_id: str) -> Sequence[Image]:
        """The image of this id, else those of this name, newest first."""
        ...

    async def networks(self) -> Mapping[str, str]:
        """Names by id, of the networks that the project may use."""
        ...

    async def security_groups(self) -> Mapping[str, str]:
        """Names by id."""
        ...

    async def key_pairs(self) -> Sequence[str]:
        """Names."""
        ...

    async def ports(self) -> Sequence[Port]:
        """The project's ports of servers."""
        ...

    async def delete_port(self, port_id: str) -> None: ...

    async def volumes(self) -> Sequence[Volume]: ...

    async def delete_volume(self, volume_id: str) -> None: ...
