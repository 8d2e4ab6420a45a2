"""Reservations: which of them keep drones off a node, and when the next one takes the whole site."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from adapters.slurm.records import Partition, Reservation, SlurmNode
from adapters.slurm.settings import Where

GONE = frozenset({"DOWN", "FUTURE", "ERROR", "UNKNOWN"})


def downtime_at(
    reservations: Iterable[Reservation],
    nodes: Iterable[SlurmNode],
    partitions: Sequence[Partition],
    wheres: Sequence[Where],
    now: float,
    users: Collection[str] = (),
) -> float:
    """When the next downtime of the site begins: from then on every node on which drones could run is kept for others,
    by one reservation (maintenance, mostly) or by several at a time. 0 if none is planned. One that has begun is none
    that comes: what it holds is not free.

    ``wheres``: where the drone types go (:meth:`settings.SlurmSiteConfig.where`). ``users``: our account's name, where
    known. A reservation of but some of the nodes is no downtime: :mod:`capacity` leaves these out when it is near.
    """
    wanted = {
        node.name
        for node in nodes
        if node.state not in GONE and any(goes_to(where, partitions, node) for where in wheres)
    }
    planned = [
        each
        for each in reservations
        if each.ends_at > now and not all(is_for(each, where, users) for where in wheres) and wanted & set(each.nodes)
    ]
    for start in sorted({each.starts_at for each in planned if each.starts_at > now}):
        kept = {name for each in planned if each.starts_at <= start < each.ends_at for name in each.nodes}
        if wanted <= kept:
            return start
    return 0.0


def goes_to(where: Where, partitions: Iterable[Partition], node: SlurmNode) -> bool:
    """Whether the node is in a partition to which drones go that are asked for so."""
    names = {each.name for each in partitions_of(where, partitions)}
    return any(name in names for name in node.partitions)


def partitions_of(where: Where, partitions: Iterable[Partition]) -> list[Partition]:
    """The partitions named; where none is, the cluster's default one, or all of them if that is not told."""
    known = list(partitions)
    if where.partition:
        named = where.partition.split(",")
        return [each for each in known if each.name in named]
    return [each for each in known if each.default] or known


def is_for(reservation: Reservation, where: Where, users: Collection[str] = ()) -> bool:
    """Whether drones that are asked for so may run in the reservation: it is named to Slurm, or it draws their jobs
    (MAGNETIC). To be among its accounts alone is not enough: Slurm lets in only jobs that ask."""
    if reservation.name in where.reservation.split(","):
        return True
    theirs = where.account in reservation.accounts if where.account else False
    return "MAGNETIC" in reservation.flags and (theirs or any(user in reservation.users for user in users))


def kept_from(
    where: Where,
    node: str,
    by_node: Mapping[str, Sequence[Reservation]],
    now: float,
    until: float,
    users: Collection[str] = (),
) -> Reservation | None:
    """The reservation that keeps drones off a node which run from ``now`` to ``until``; None if none does.

    ``by_node``: the reservations of each node (:func:`by_node`). Drones that ask for a reservation run nowhere else:
    whether they may run on this node at all is :func:`confined`'s to say.
    """
    for each in by_node.get(node, ()):
        if each.starts_at < until and each.ends_at > now and not is_for(each, where, users):
            return each
    return None


def confined(where: Where, node: str, by_node: Mapping[str, Sequence[Reservation]]) -> bool:
    """Whether drones asked for so have to run in reservations that the node is not in."""
    named = where.reservation.split(",") if where.reservation else []
    return bool(named) and not any(each.name in named for each in by_node.get(node, ()))


def by_node(reservations: Iterable[Reservation], now: float) -> Mapping[str, Sequence[Reservation]]:
    """Reservations that are not over, by each node in them; the first to begin comes first."""
    found: dict[str, list[Reservation]] = {}
    for each in sorted((r for r in reservations if r.ends_at > now), key=lambda r: (r.starts_at, r.name)):
        for name in each.nodes:
            found.setdefault(name, []).append(each)
    return found
