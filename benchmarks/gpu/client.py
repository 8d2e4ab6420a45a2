"""A process that uses a GPU, for the benchmark: by ``libcuda.so.1`` alone, no toolkit. Needs nothing but Python.

It prints JSON lines. Most commands say that they are ready, and go on after a line of input or at
its end.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import time

PTX = b"""
.version 6.4
.target sm_50
.address_size 64
.visible .entry train(.param .u64 data, .param .u32 rounds, .param .u32 count)
{
    .reg .pred %p;
    .reg .b32 %block, %threads, %thread, %i, %rounds, %count, %x;
    .reg .b64 %address, %offset;
    ld.param.u64 %address, [data];
    ld.param.u32 %rounds, [rounds];
    ld.param.u32 %count, [count];
    cvta.to.global.u64 %address, %address;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mad.lo.u32 %i, %block, %threads, %thread;
    setp.ge.u32 %p, %i, %count;
    @%p bra END;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %address, %address, %offset;
    ld.global.u32 %x, [%address];
AGAIN:
    mad.lo.u32 %x, %x, 1664525, 1013904223;
    sub.u32 %rounds, %rounds, 1;
    setp.ne.u32 %p, %rounds, 0;
    @%p bra AGAIN;
    st.global.u32 [%address], %x;
END:
    ret;
}
.visible .entry fault()
{
    .reg .b64 %address;
    mov.u64 %address, 16;
    st.global.u64 [%address], %address;
    ret;
}
"""
"""``train`` applies a linear congruential generator to each of ``count`` numbers, ``rounds`` times.
``fault`` stores to an illegal address."""
THREADS = 256
MIB = 1 << 20
HOST_WORK = [(2 * n + 1) / 10 for n in range(10)]
"""Times of the host work of ten steps, in units of their mean; their order is shuffled every ten steps."""
BLOCKING_SYNC = 4
"""Flag of a context: the host waits for the GPU without using a processor."""


def generated(x: int, rounds: int) -> int:
    """Return the result of the kernel ``train`` for one number."""
    for _ in range(rounds):
        x = (x * 1664525 + 1013904223) % (1 << 32)
    return x


class CudaError(Exception):
    """A call of the driver failed."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code


class Gpu:
    """The first visible GPU: a context, memory, kernels."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.device, self.context, self.module = (
            ctypes.c_int(),
            ctypes.c_void_p(),
            ctypes.c_void_p(),
        )
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuCtxCreate_v2", ctypes.byref(self.context), BLOCKING_SYNC, self.device)
        # The driver compiles it.
        self.call(
            "cuModuleLoadDataEx", ctypes.byref(self.module), ctypes.c_char_p(PTX), 0, None, None
        )

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver.

        Raises:
            CudaError: its code is not 0.
        """
        code = getattr(self.cuda, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise CudaError(name, code, (text.value or b"unknown error").decode())

    def size(self) -> tuple[int, int]:
        """Return the number of multiprocessors and the memory in bytes."""
        processors, free, total = ctypes.c_int(), ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuDeviceGetAttribute", ctypes.byref(processors), 16, self.device)
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return processors.value, total.value

    def allocate(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address

    def launch(self, name: str, blocks: int, *arguments: ctypes.c_uint64 | ctypes.c_uint32) -> None:
        """Start a kernel of :data:`PTX`."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, name.encode())
        values = (ctypes.c_void_p * (len(arguments) + 1))(*map(ctypes.addressof, arguments))
        self.call("cuLaunchKernel", function, blocks, 1, 1, THREADS, 1, 1, 0, None, values, None)

    def work(self, blocks: int, data: ctypes.c_uint64, rounds: int) -> None:
        """Run ``train`` to its end."""
        self.launch(
            "train", blocks, data, ctypes.c_uint32(rounds), ctypes.c_uint32(blocks * THREADS)
        )
        self.call("cuCtxSynchronize")


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def go() -> None:
    """Wait for a line, or for the end of the input."""
    say(ready=os.getpid())
    sys.stdin.readline()


def describe(gpu: Gpu, how: argparse.Namespace) -> None:
    """Measure the rounds of the kernel per millisecond."""
    data, rounds, took_s = gpu.allocate(4 * THREADS * how.blocks), 1000, 0.0
    while took_s < 0.05:
        rounds *= 2
        began = time.perf_counter()
        gpu.work(how.blocks, data, rounds)
        took_s = time.perf_counter() - began
    processors, total = gpu.size()
    say(rounds_per_ms=rounds / took_s / 1000, multiprocessors=processors, total=total)


def train(gpu: Gpu, how: argparse.Namespace) -> None:
    """Repeat steps of GPU work and of host work for a while; add up the seconds in which it waited for the GPU.

    The time of the host work varies around its mean. Otherwise equal trainings that started
    together would stay in step and meet on the GPU in each step.
    """
    data = gpu.allocate(max(4 * THREADS * how.blocks, how.mib * MIB))
    gpu.work(how.blocks, data, how.rounds)
    go()
    steps, gpu_s, why, code = 0, 0.0, "", 0
    factors: list[float] = []
    began = now = time.perf_counter()
    while now - began < how.seconds:
        try:
            gpu.work(how.blocks, data, how.rounds)
        except CudaError as error:
            why, code = str(error), error.code
            break
        gpu_s += time.perf_counter() - now
        if not factors:
            factors = random.sample(HOST_WORK, len(HOST_WORK))
        time.sleep(how.host_ms / 1000 * factors.pop())
        steps, now = steps + 1, time.perf_counter()
    say(steps=steps, seconds=time.perf_counter() - began, gpu_s=gpu_s, code=code, why=why)


def spin(gpu: Gpu, how: argparse.Namespace) -> None:
    """Run one long kernel."""
    data = gpu.allocate(4 * THREADS * how.blocks)
    go()
    gpu.launch(
        "train",
        how.blocks,
        data,
        ctypes.c_uint32(how.rounds),
        ctypes.c_uint32(how.blocks * THREADS),
    )
    say(launched=True)
    gpu.call("cuCtxSynchronize")


def fault(gpu: Gpu, _: argparse.Namespace) -> None:
    """Store to an illegal address."""
    go()
    gpu.launch("fault", 1)
    gpu.call("cuCtxSynchronize")


def allocate(gpu: Gpu, how: argparse.Namespace) -> None:
    """Hold memory until a line of input, or its end."""
    gpu.allocate(how.mib * MIB)
    go()


def probe(gpu: Gpu, _: argparse.Namespace) -> None:
    """Fill nine tenths of the memory with a pattern, run a kernel on the last 256 KiB of that, and check them."""
    blocks, rounds, pattern = 256, 1000, 0x5AA5C33C
    words = gpu.size()[1] * 9 // 10 // 4
    memory = gpu.allocate(words * 4)
    gpu.call("cuMemsetD32_v2", memory, pattern, ctypes.c_size_t(words))
    found = (ctypes.c_uint32 * (blocks * THREADS))()
    last = ctypes.c_uint64(memory.value + words * 4 - ctypes.sizeof(found))
    gpu.work(blocks, last, rounds)
    gpu.call("cuMemcpyDtoH_v2", found, last, ctypes.c_size_t(ctypes.sizeof(found)))
    expected = generated(pattern, rounds)
    say(code=0, mib=words * 4 // MIB, wrong=sum(value != expected for value in found))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="A process that uses a GPU, for the benchmark of shared GPUs."
    )
    commands = {each.__name__: each for each in (describe, train, spin, fault, allocate, probe)}
    parser.add_argument("command", choices=commands)
    parser.add_argument("--rounds", type=int, default=1, help="rounds of a kernel")
    parser.add_argument(
        "--blocks", type=int, default=1, help=f"blocks of {THREADS} threads of a kernel"
    )
    parser.add_argument("--host-ms", type=float, default=0, help="train: host work per step")
    parser.add_argument("--seconds", type=float, default=10, help="train: time to run")
    parser.add_argument("--mib", type=int, default=0, help="train, allocate: memory to hold")
    how = parser.parse_args()
    try:
        commands[how.command](Gpu(), how)
    except (CudaError, OSError) as error:
        say(code=getattr(error, "code", -1), why=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
