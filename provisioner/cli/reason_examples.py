"""One example of every reason, for the reference; a test sees to it that none is missing."""

from __future__ import annotations

from provisioner import reasons as r
from provisioner.reasons import Reason

EXAMPLES: tuple[Reason, ...] = (
    r.Accepted("8812.0"),
    r.OrderRefused("quota", "AssocGrpGRES: the group has no GPU-hours left"),
    r.OutcomeUnknown("no answer within 60 s"),
    r.SeenAtSite("pending", "Resources"),
    r.SeenInPool("busy", 2, 341.0),
    r.NotInListing(),
    r.NeverArrived(134.0, 120.0),
    r.GoneFromSite(45.0, 30.0),
    r.EndedAtSite("exited", 71, "nvidia-smi: No devices were found", 12.0, 0),
    r.IdleTooLong(612.0, 600.0),
    r.Unneeded("queued"),
    r.StageTooLong("booting", 640.0, 600.0),
    r.OutOfPool(320.0, 300.0),
    r.OperatorAsked("alice", "node needs a new fan"),
    r.OwnerClaim(3, 95.0, "topas-a100-2", 6, 5400.0),
    r.TakenBack("the owner's job took its place", 9.2, 10.0, 312.0, 1),
    r.Notice("preempted by its site"),
    r.ReserveWanted("topas-v100s-1"),
    r.TypeGone("horeka/a100"),
    r.NoRecord("lost"),
    r.WantedAgain("12", 4),
    r.JobsWait("12", 30, 6, 4),
    r.BadRequest("1.5 GPUs: write 1 or 2, only less than one GPU can be a share"),
    r.NothingFits("horeka/h100", "vram", "200000 MiB", "97792 MiB"),
    r.LimitReached("max_drones", "horeka/h100", 40, 40),
    r.BackingOff("horeka", 1769860800.0, "denied", "token has expired"),
    r.SiteFull("topas/v100"),
    r.SiteQuota("gridka-cloud/h100"),
    r.SiteBlocks("horeka/a100", "quota", "QOSMaxJobsPerUserLimit"),
    r.Downtime("horeka", 1769860800.0, 900.0, 1800.0),
    r.OwnerWaits("topas", 3, 8),
    r.ReserveKept("topas/cpu", 4),
    r.SiteDisabled("gridka-cloud"),
    r.OnTheirWay(8, 3),
    r.AwaitsNegotiation(25),
    r.ViewStale("site:horeka", 187.0, 120.0, "no answer within 20 s"),
    r.AllVanished("topas", 56),
    r.TooManyUnhealthy(31, 120, 0.2),
    r.Probing("horeka"),
    r.UnknownDrone("kit-x7q2-999"),
)
