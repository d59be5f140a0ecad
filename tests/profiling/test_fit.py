"""Efficiencies fitted to profiles: known factors come back, odd kernels move nothing, and the file is read again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from profiles_made import CATALOGUED, CPU, TRUE, profile_of

from placewise.catalog import read_cluster
from placewise.catalog.write import format_cluster
from placewise.errors import CostError
from placewise.files.profile_file import DeviceProfile, Figures
from placewise.model.cluster import HOST, Cluster, Device, Link
from placewise.profiling.calibrate import collect_kernels, fit_cluster, fit_device, predict_seconds, rank_correlation

CLUSTER = Cluster((CPU,))


def test_known_factors_come_back():
    """Times made by a roofline give its factors; what no kernel is of stays as the catalogue has it."""
    found = fit_cluster(CLUSTER, [profile_of(TRUE)])
    device = found.cluster.devices[0]
    for name in ("matmul", "conv", "elementwise", "memory"):
        assert device.efficiency[name] == pytest.approx(TRUE.efficiency[name], rel=0.02), name
    assert device.op_overhead == pytest.approx(7e-6, rel=0.02)
    assert device.efficiency["attention"] == CATALOGUED["attention"]
    assert found.before["cpu"].error > 0.3 and found.after["cpu"].error < 0.01 and found.after["cpu"].rank > 0.999
    assert "measured: efficiencies" in device.notes[-1]


def test_a_few_odd_kernels_move_nothing():
    """One op in ten takes a hundred times as long: the factors stay."""
    profile = profile_of(TRUE, noise=0.02)
    times = list(profile.devices[0].idle.ops)
    times[::10] = [100 * time for time in times[::10]]
    odd = DeviceProfile(name="cpu", idle=Figures(ops=tuple(times)))
    device = fit_cluster(CLUSTER, [profile.model_copy(update={"devices": (odd,)})]).cluster.devices[0]
    for name in ("matmul", "conv", "memory"):
        assert device.efficiency[name] == pytest.approx(TRUE.efficiency[name], rel=0.15), name


def test_a_model_that_was_left_out_is_explained():
    """Factors fit_cluster to two models explain a third; a device that differs between models is not explained so."""
    alike = fit_cluster(CLUSTER, [profile_of(TRUE, seed=seed) for seed in range(3)])
    assert alike.left_out["cpu"].error < 0.02 and alike.left_out["cpu"].rank > 0.99
    slower = replace(TRUE, efficiency={name: share / 4 for name, share in TRUE.efficiency.items()})
    mixed = fit_cluster(CLUSTER, [profile_of(TRUE, seed=0), profile_of(slower, seed=1)])
    assert mixed.left_out["cpu"].error > 0.5
    assert mixed.cluster.devices[0].error == mixed.left_out["cpu"].error
    one = fit_cluster(CLUSTER, [profile_of(TRUE, noise=0.1)])
    assert one.cluster.devices[0].error == one.after["cpu"].error > 0


def test_shares_above_one_raise_the_peak():
    """A device that is faster than its peak says gets a higher peak, and no share above 1: its times stay."""
    faster = replace(TRUE, peak_flops={"float32": 5e11}, memory_bandwidth=1e11)
    profile = profile_of(faster)
    device = fit_device(CPU, collect_kernels(profile, profile.devices[0], CPU))
    assert max(device.efficiency.values()) <= 1 and device.peak_flops["float32"] > 1e11
    kernels = collect_kernels(profile, profile.devices[0], device)
    assert predict_seconds(device, kernels) == pytest.approx(kernels.seconds, rel=0.05)


def test_fused_ops_are_one_kernel():
    """Their times and FLOPs add up, their traffic is that of the op that moves most, and the class of the largest."""
    profile = profile_of(TRUE, n=3).model_copy(
        update={"classes": ("conv", "elementwise", "free"), "flops": (100.0, 9.0, 0.0), "bytes": (50.0, 40.0, 9.0)}
    )
    device = DeviceProfile(name="cpu", fused=((0, 1),), idle=Figures(ops=(2.0, 1.0, None)))
    kernels = collect_kernels(profile, device, CPU)
    assert kernels.seconds.tolist() == [3.0] and kernels.flops.tolist() == [109.0] and kernels.bytes.tolist() == [50.0]
    assert kernels.op_class == ("conv",)


def test_profiles_of_other_devices_are_refused():
    """A profile must be of a device of the cluster."""
    with pytest.raises(CostError, match="the profiles are of cpu, which the cluster does not have"):
        fit_cluster(read_cluster("L4"), [profile_of(TRUE)])


def test_ranks():
    """Spearman's correlation by hand: 1 in the same order, −1 in the opposite one, ties share their rank."""
    assert rank_correlation(np.array([1.0, 5.0, 9.0]), np.array([2.0, 3.0, 70.0])) == pytest.approx(1)
    assert rank_correlation(np.array([1.0, 5.0, 9.0]), np.array([9.0, 5.0, 1.0])) == pytest.approx(-1)
    assert rank_correlation(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(np.sqrt(3) / 2)


@pytest.mark.parametrize("line", ["2xcore", "2xA100-80GB,cpu", "this,L4", "2xV100-16GB,P100"])
def test_a_written_cluster_is_read_again(tmp_path, line):
    """The text of a cluster gives the same cluster: devices with notes, links, the way of transfers."""
    cluster = read_cluster(line)
    path = tmp_path / "c.toml"
    path.write_text(format_cluster(cluster, ("a comment",)), "utf-8")
    again = read_cluster(path)
    assert again.devices == cluster.devices and again.transfers == cluster.transfers
    assert set(again.links) == set(cluster.links) and (again.link_class == cluster.link_class).all()


def test_a_strange_cluster_is_written_and_read_again(tmp_path):
    """Unlimited figures, shared wires, kinds that cannot run, quotes and line breaks in notes."""
    odd = Device(
        "n p u",
        unsupported=frozenset({"Loop", "If"}),
        supported=frozenset({"Conv"}),
        available=False,
        streams=2,
        error=0.2,
        notes=('a "b"\n\\c', "ü"),
    )
    links = Link("n p u", HOST, 1e9, 1e-6, "bus"), Link(HOST, "n p u", 2e9, 0.0, "bus")
    cluster = Cluster((odd, Device("x", "cpu", peak_flops={"float16": 1e12})), links)
    path = tmp_path / "c.toml"
    path.write_text(format_cluster(cluster), "utf-8")
    again = read_cluster(path)
    assert again.devices == cluster.devices and set(again.links) == set(links)
