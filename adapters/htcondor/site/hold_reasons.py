"""What a held job says went wrong, as one of our kinds of fault.

Codes from the HTCondor manual, appendix "Job ClassAd Attributes", table of ``HoldReasonCode`` (25.x); a newer code is
unknown, never an error.
"""

from __future__ import annotations

import errno

from provisioner.model import FaultKind

SPOOLING = 16
"""Input files are being spooled: not held at all."""

_KINDS = {
    1: FaultKind.NODE,  # UserRequest: condor_hold. One such drone says nothing of the site; several, of their type
    3: FaultKind.CONFIG,  # JobPolicy: an expression of the job's own
    4: FaultKind.DENIED,  # CorruptedCredential
    5: FaultKind.CONFIG,  # JobPolicyUndefined
    6: FaultKind.NODE,  # FailedToCreateProcess
    7: FaultKind.NODE,  # UnableToOpenOutput
    8: FaultKind.NODE,  # UnableToOpenInput
    9: FaultKind.NODE,  # UnableToOpenOutputStream
    10: FaultKind.NODE,  # UnableToOpenInputStream
    11: FaultKind.NODE,  # InvalidTransferAck
    12: FaultKind.NODE,  # TransferOutputError
    13: FaultKind.NODE,  # TransferInputError
    14: FaultKind.NODE,  # IwdError
    15: FaultKind.CONFIG,  # SubmittedOnHold
    17: FaultKind.UNKNOWN,  # JobShadowMismatch
    18: FaultKind.NODE,  # InvalidTransferGoAhead
    19: FaultKind.CONFIG,  # HookPrepareJobFailure: the site's own hook refused it
    20: FaultKind.CAPACITY,  # MissedDeferredExecutionTime
    21: FaultKind.CONFIG,  # StartdHeldJob: the node's policy
    22: FaultKind.NODE,  # UnableToInitUserLog
    23: FaultKind.DENIED,  # FailedToAccessUserAccount
    24: FaultKind.CONFIG,  # NoCompatibleShadow
    25: FaultKind.CONFIG,  # InvalidCronSettings
    26: FaultKind.CONFIG,  # SystemPolicy: SYSTEM_PERIODIC_HOLD
    27: FaultKind.CONFIG,  # SystemPolicyUndefined
    32: FaultKind.QUOTA,  # MaxTransferInputSizeExceeded
    33: FaultKind.QUOTA,  # MaxTransferOutputSizeExceeded
    34: FaultKind.DRONE,  # JobOutOfResources: over its memory, by what the jobs in it did
    35: FaultKind.CONFIG,  # InvalidDockerImage
    36: FaultKind.NODE,  # FailedToCheckpoint
    37: FaultKind.DENIED,  # EC2UserError and other grid types
    38: FaultKind.DOWN,  # EC2InternalError
    39: FaultKind.QUOTA,  # EC2AdminError
    40: FaultKind.CAPACITY,  # EC2ConnectionProblem
    41: FaultKind.DOWN,  # EC2ServerError
    42: FaultKind.UNKNOWN,  # EC2InstancePotentiallyLostError
    43: FaultKind.CONFIG,  # PreScriptFailed
    44: FaultKind.CONFIG,  # PostScriptFailed
    45: FaultKind.NODE,  # SingularityTestFailed: the node's container runtime
    46: FaultKind.DRONE,  # JobDurationExceeded
    47: FaultKind.DRONE,  # JobExecuteExceeded: it did not leave at the end of its walltime
    48: FaultKind.NODE,  # HookShadowPrepareJobFailure
}
_STARTD_HELD = 21
_USED_TOO_MUCH = frozenset({101, 102, 104})
"""Sub-codes of HTCondor's policies HOLD_IF_CPUS_EXCEEDED, _MEMORY_ and _DISK_: the jobs in the drone did that."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_SETUP = frozenset({6, 7, 8, 12, 13, 14, 22})
"""Codes whose sub-code is an ``errno``."""


def hold_kind(code: int, subcode: int) -> FaultKind:
    """The kind of fault behind a hold."""
    if code == _STARTD_HELD and subcode in _USED_TOO_MUCH:
        return FaultKind.DRONE
    if code in _SETUP and subcode in _FULL:
        return FaultKind.QUOTA if subcode == errno.EDQUOT else FaultKind.NODE
    if code in _SETUP and subcode in (errno.EACCES, errno.EPERM) and code != 6:
        return FaultKind.DENIED
    return _KINDS.get(code, FaultKind.UNKNOWN)
