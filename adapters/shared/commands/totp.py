"""One-time codes of RFC 6238 (SHA-1, six digits, thirty seconds), as login nodes ask for; none is given twice."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import struct
import time

STEP_S = 30


def code(seed: str, step: int) -> str:
    """Return the six digits of time step ``step`` (seconds since the epoch by 30).

    Raises ValueError if ``seed`` is not base32.
    """
    letters = "".join(seed.split()).upper().rstrip("=")
    try:
        key = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except binascii.Error:
        raise ValueError("the seed of the one-time codes is not base32") from None
    mac = hmac.digest(key, struct.pack(">Q", step), "sha1")
    at = mac[-1] & 15
    return f"{(int.from_bytes(mac[at : at + 4], 'big') & 0x7FFFFFFF) % 10**6:06}"


class Codes:
    """Codes of one seed. A server takes each only once, so a second one waits for the next half minute."""

    def __init__(self) -> None:
        self._last = 0

    async def next(self, seed: str) -> str:
        step = self._last = max(int(time.time()) // STEP_S, self._last + 1)
        await asyncio.sleep(max(0.0, step * STEP_S - time.time()))
        return code(seed, step)
