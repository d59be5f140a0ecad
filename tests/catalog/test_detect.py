"""The machine at hand, from `/proc` and `/sys` trees written by hand."""

from __future__ import annotations

import os

import pytest

from placewise.catalog import this_machine
from placewise.catalog.detect import this_core


def write(root, **files):
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def cpuinfo(cores, *, flags, threads=1, sockets=1, mhz="2900.5", title="Test CPU"):
    """A `/proc/cpuinfo` of x86: `threads` per core, `cores` per socket."""
    rows, number = [], 0
    for socket in range(sockets):
        for core in list(range(cores)) * threads:
            rows.append(
                f"processor\t: {number}\nmodel name\t: {title}\ncpu MHz\t\t: {mhz}\nphysical id\t: {socket}\n"
                f"core id\t\t: {core}\nflags\t\t: fpu {flags}\n"
            )
            number += 1
    return "\n".join(rows)


def machine(root, cpus=256):
    return this_machine(root=root, cpus=frozenset(range(cpus)))


def test_cores_clock_and_width_give_the_peak(tmp_path):
    """2 sockets × 4 cores (2 threads each) × 2.9 GHz × 32 operations of AVX2; float64 is half, memory as said."""
    write(
        tmp_path,
        proc__cpuinfo=cpuinfo(4, threads=2, sockets=2, flags="avx avx2 fma"),
        proc__meminfo="MemTotal:       16777216 kB\n",
    )
    device = machine(tmp_path)
    assert device.peak_flops == {"float64": 8 * 2.9e9 * 16, "float32": 8 * 2.9e9 * 32}
    assert device.memory == 16 * 2**30
    assert device.memory_bandwidth == 100e9
    assert device.is_host and device.name == "cpu"
    assert "estimated" in device.notes[0] and "assumed" in device.notes[0]


@pytest.mark.parametrize(
    ("flags", "width", "faster"),
    [
        ("sse2", 8, {}),
        ("sse2 avx", 16, {}),
        ("avx avx2 avx_vnni", 32, {"int8": 4}),
        ("avx avx2 avx512f avx512_vnni avx512_bf16", 64, {"int8": 4, "bfloat16": 2}),
        ("avx2 avx512f avx512_vnni amx_int8 amx_bf16 avx512_fp16", 64, {"int8": 32, "bfloat16": 16, "float16": 2}),
    ],
)
def test_instruction_sets(tmp_path, flags, width, faster):
    """The widest vector unit sets float32; further sets multiply the rate of narrower types."""
    write(tmp_path, proc__cpuinfo=cpuinfo(1, flags=flags, mhz="1000"))
    peaks = dict(machine(tmp_path).peak_flops)
    assert peaks.pop("float32") == 1e9 * width
    assert peaks.pop("float64") == 1e9 * width / 2
    assert peaks == {dtype: 1e9 * width * factor for dtype, factor in faster.items()}


def test_arm(tmp_path):
    """Arm's cpuinfo has Features and no cores or clock: every processor is a core, the clock is cpufreq's."""
    block = "processor\t: {}\nFeatures\t: fp asimd asimddp asimdhp\nCPU part\t: 0xd0c\n"
    write(tmp_path, proc__cpuinfo="\n".join(block.format(n) for n in range(4)))
    write(tmp_path, sys__devices__system__cpu__cpu0__cpufreq__cpuinfo_max_freq="3000000\n")
    rate = 4 * 3e9 * 16
    assert machine(tmp_path).peak_flops == {
        "float64": rate / 2, "float32": rate, "int8": 4 * rate, "float16": 2 * rate,
    }  # fmt: skip


def test_the_clock_that_does_not_change_comes_first(tmp_path):
    """Base frequency, then the one in the name, then the highest, then the present one."""

    def clock():
        return machine(tmp_path).peak_flops["float32"] / 8

    write(tmp_path, proc__cpuinfo=cpuinfo(1, flags="sse2", mhz="1234.567"))
    assert clock() == 1.2e9
    write(tmp_path, sys__devices__system__cpu__cpu0__cpufreq__cpuinfo_max_freq="4000000")
    assert clock() == 4e9
    write(tmp_path, proc__cpuinfo=cpuinfo(1, flags="sse2", title="Xeon(R) Gold 6338 CPU @ 2.00GHz"))
    assert clock() == 2e9
    write(tmp_path, sys__devices__system__cpu__cpu0__cpufreq__base_frequency="2600000")
    assert clock() == 2.6e9


def test_affinity_and_control_groups_limit_cores_and_memory(tmp_path):
    """Only allowed processors count, and the least limit of the process's groups, of version 2."""
    write(
        tmp_path,
        proc__cpuinfo=cpuinfo(8, flags="sse2", mhz="1000"),
        proc__meminfo="MemTotal: 1048576 kB\n",
        proc__self__cgroup="0::/jobs/mine\n",
    )
    assert machine(tmp_path).peak_flops["float32"] == 8 * 8e9
    assert machine(tmp_path, cpus=3).peak_flops["float32"] == 3 * 8e9
    write(tmp_path, **{"sys__fs__cgroup__jobs__mine__cpu.max": "max 100000\n"})
    write(tmp_path, **{"sys__fs__cgroup__jobs__cpu.max": "150000 100000\n"})
    write(tmp_path, **{"sys__fs__cgroup__jobs__mine__memory.max": "536870912\n"})
    write(tmp_path, **{"sys__fs__cgroup__jobs__memory.max": "636870912\n"})
    assert machine(tmp_path).peak_flops["float32"] == 1.5 * 8e9
    assert machine(tmp_path).memory == 512 * 2**20
    core = this_core(root=tmp_path, cpus=frozenset(range(256)))
    assert core.peak_flops["float32"] == 8e9 and core.memory == 512 * 2**20
    assert core.memory_bandwidth == machine(tmp_path).memory_bandwidth / 8


def test_control_groups_of_version_1(tmp_path):
    """Quota and memory limit of version 1; no quota is −1, no limit a huge number."""
    write(
        tmp_path,
        proc__cpuinfo=cpuinfo(8, flags="sse2", mhz="1000"),
        proc__meminfo="MemTotal: 1048576 kB\n",
        proc__self__cgroup="4:memory:/a\n1:cpu:/\n",
    )
    write(tmp_path, **{"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1\n"})
    write(tmp_path, **{"sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n"})
    write(tmp_path, **{"sys__fs__cgroup__memory__a__memory.limit_in_bytes": "9223372036854771712\n"})
    assert machine(tmp_path).peak_flops["float32"] == 8 * 8e9
    assert machine(tmp_path).memory == 2**30
    write(tmp_path, **{"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "200000\n"})
    assert machine(tmp_path).peak_flops["float32"] == 2 * 8e9


def test_a_machine_that_says_nothing(tmp_path):
    """Without /proc the processors that may be used count as cores at a default clock."""
    device = machine(tmp_path, cpus=2)
    assert device.peak_flops["float32"] in (2 * 2.5e9 * 8, 2 * 2.5e9 * 16)
    assert device.memory > 0


def test_the_real_machine_is_the_same_twice():
    """Detection is deterministic and within what the machine has."""
    first, second = this_machine(), this_machine()
    assert first == second
    assert 0 < first.memory <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert first.peak_flops["float32"] > 1e9
