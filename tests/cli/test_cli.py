"""The command line, run for real: answers, exit codes, what is printed where, and bad input."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runs import run, workload
from locations import EXAMPLES
from soak import later

from placewise.catalog import read_cluster
from placewise.cli.command import listen
from placewise.files.cluster_record import cluster_to_dict

RESNET = str(EXAMPLES / "resnet50.onnx")
BERT = str(EXAMPLES / "bert_base.onnx")
NAMES = (
    *(
        "auto",
        "balanced",
        "colocrl",
        "cover",
        "cpsat",
        "critical_path",
        "doppler",
        "dp",
        "dpl",
        "etf",
        "gdp",
        "greedy",
        "hdp",
        "heft",
        "hsdag",
        "in_order",
        "local",
        "max_load_dp",
    ),
    *(
        "exhaustive",
        "expert",
        "metis",
        "min_cut",
        "mincut",
        "multilevel",
        "pack",
        "parallel_dp",
        "pipeline_search",
        "paths",
        "pipedream",
        "pipeline_search",
        "placeto",
        "random",
    ),
    *("round_robin", "sct", "single", "temper", "topo", "two_way", "uniform", "windows"),
)


def run_apart(*arguments: object, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """The installed command in a process of its own, its exit code checked."""
    command = [sys.executable, "-c", "from placewise.cli import main; main()", *map(str, arguments)]
    around = {**os.environ, "NO_COLOR": "1", **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=around)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_help_names_every_command() -> None:
    """`--help` lists the verbs."""
    text = run_apart("--help").stdout
    for verb in ("place", "inspect", "check", "judge", "compare", "devices", "run", "export", "profile"):
        assert verb in text
    assert re.search(r"zoo +Models by name", text)


def test_a_plan_is_no_model(tmp_path: Path) -> None:
    """The message says what it is and what to name."""
    (tmp_path / "plan.json").write_text('{"format": "placewise-plan", "version": 1}')
    done = run("place", tmp_path / "plan.json", "-d", "cpu", code=2)
    assert "is a plan, not a model; name the model that it was made from" in done.stderr


def test_a_device_that_headroom_leaves_no_memory_is_named(tmp_path: Path) -> None:
    """A note says so; smaller headroom needs none."""
    words = ("place", RESNET, "-d", "2xL4,cpu", "--dim", "batch=1", "--time-limit", "0.2s", "--headroom")
    assert "cuda:0, cuda:1: no memory is left" in run(*words, "30GiB").stderr
    assert "no memory is left" not in run(*words, "1GiB").stderr


def test_place_writes_a_plan_that_check_and_simulate_accept(tmp_path: Path) -> None:
    """An ONNX model is placed; the plan needs nothing but the model to be checked and priced to the same value."""
    plan = tmp_path / "plan.json"
    text = run("place", RESNET, "-d", "2xL4,cpu", "--dim", "batch=4", "--objective", "throughput", "-o", plan).stdout
    assert "proved optimal" in text and "best single device" in text and "bottleneck" in text
    written = json.loads(plan.read_text())
    assert {"assignment", "value", "lower_bound", "gap", "status"} <= set(written)
    assert written["status"] == "optimal" and set(written["assignment"].values()) <= {"cuda:0", "cuda:1", "cpu"}
    assert "keeps every rule" in run("check", RESNET, plan).stdout
    priced = json.loads(run("simulate", RESNET, plan, "--json").stdout)
    assert priced["value"] == pytest.approx(written["value"], rel=1e-12) and priced["valid"]
    used = {use["device"]: use["peak"] for use in priced["devices"] if use["ops"]}
    assert {peak["device"]: peak["bytes"] for peak in priced["peaks"]} == used
    assert all(peak["op"] in written["assignment"] and peak["held"] for peak in priced["peaks"])


def test_json_goes_to_standard_output_alone(tmp_path: Path) -> None:
    """With --json, standard output is the plan and nothing else; notes go to standard error."""
    done = run_apart("place", workload(tmp_path / "w.json"), "--json")
    plan = json.loads(done.stdout)
    assert plan["format"] == "placewise-plan" and plan["value"] == pytest.approx(0.009) and plan["gap"] <= 1e-6


def test_workloads_bring_their_devices(tmp_path: Path) -> None:
    """Devices beside a workload are refused; the optimum of the toy is 9 ms: two ops of 4, one tensor in."""
    path = workload(tmp_path / "w.json")
    assert "proved optimal" in run("place", path).stdout
    assert "leave out the devices" in run_apart("place", path, "-d", "cpu", code=2).stderr


def test_every_rule_holds_and_plans_keep_them(tmp_path: Path) -> None:
    """Two rules of one pattern both hold, a plan remembers them, and a wish of the user's own replaces the plan's."""
    path, plan = workload(tmp_path / "w.json"), tmp_path / "plan.json"
    run("place", path, "--forbid", "^1$=acc0", "--forbid", "^1$=acc1", "--headroom", "10%", "-o", plan)
    written = json.loads(plan.read_text())
    assert written["assignment"]["1"] == "cpu0"
    assert [rule["device"] for rule in written["constraints"]["forbidden"]] == ["acc0", "acc1"]
    priced = json.loads(run("simulate", path, plan, "--json").stdout)
    assert priced["devices"][0]["capacity"] == 90 and priced["valid"]
    assert json.loads(run("simulate", path, plan, "--headroom", "0", "--json").stdout)["devices"][0]["capacity"] == 100
    assert "given twice" in run("place", RESNET, "--dim", "batch=1", "--dim", "batch=2", "-d", "cpu", code=2).stderr
    assert "may run on no device" in run("place", path, "--pin", "^1$=acc0", "--pin", "^1$=acc1", code=3).stdout


def test_given_op_times_replace_estimates(tmp_path: Path) -> None:
    """A CSV of op times changes where ops go and what a plan is worth; an unknown op is refused with its line."""
    path, times, split = workload(tmp_path / "w.json"), tmp_path / "times.csv", tmp_path / "split.json"
    times.write_text("op,device,seconds\n0,acc0,0.5\n")
    split.write_text(json.dumps({"fpgas": [{"nodes": [0, 1]}, {"nodes": [2]}], "cpus": []}))
    priced = json.loads(run("simulate", path, split, "--costs", times, "--json").stdout)
    assert priced["value"] == pytest.approx(0.5 + 0.004 + 0.002)
    placed = json.loads(run("place", path, "--costs", times, "--json").stdout)
    assert placed["assignment"]["0"] != "acc0" and "times.csv" in placed["warnings"][0]
    times.write_text("op,device,seconds\n77,acc0,0.5\n")
    assert "77" in run("place", path, "--costs", times, code=2).stderr


def test_infeasible_is_exit_code_3(tmp_path: Path) -> None:
    """What cannot fit is proved infeasible with device, bytes short and the largest group; nothing is written."""
    path, plan = workload(tmp_path / "w.json", maxSizePerFPGA=30.0, maxCPUs=0), tmp_path / "plan.json"
    text = run_apart("place", path, "-o", plan, code=3).stdout
    assert "infeasible" in text and "10 B" in text and "acc0" in text
    assert not plan.exists()


def test_check_names_what_is_broken(tmp_path: Path) -> None:
    """A plan over memory is priced by simulate and refused by check with exit code 3."""
    path, split = workload(tmp_path / "w.json", maxSizePerFPGA=100.0), tmp_path / "split.json"
    split.write_text(json.dumps({"fpgas": [{"nodes": [0, 1, 2]}, {"nodes": []}], "cpus": [{"nodes": []}]}))
    assert json.loads(run("simulate", path, split, "--json").stdout)["value"] == pytest.approx(0.012)
    found = json.loads(run("check", path, split, "--json", code=3).stdout)
    assert [broken["kind"] for broken in found["violations"]] == ["memory"]
    assert found["violations"][0]["bytes_short"] == 20


def test_compare_gives_a_leaderboard(tmp_path: Path) -> None:
    """Every placer has a line, the best value first, those that cannot say why."""
    compared = run("compare", workload(tmp_path / "w.json"), "--time-limit", "0.1s", "--json").stdout
    entries = json.loads(compared)["entries"]
    assert {entry["placer"] for entry in entries} == set(NAMES)
    values = [entry["value"] for entry in entries if "value" in entry and entry["value"] is not None]
    assert values == sorted(values) and values[0] == pytest.approx(0.009)
    assert any("refusal" in entry for entry in entries)
    text = run("compare", workload(tmp_path / "w.json"), "--placers", "dp,balanced").stdout
    assert "dp" in text and "lower bound" in text


def test_inspect_counts() -> None:
    """Ops, FLOPs and weights of ResNet-50 by kind, and as JSON."""
    found = json.loads(run("inspect", RESNET, "--dim", "batch=1", "--json").stdout)
    assert found["flops"] == pytest.approx(8.2e9, rel=0.02)
    assert {row["name"]: row["ops"] for row in found["by_kind"]}["Conv"] == 53
    assert "layer1.0" in run("inspect", RESNET, "--dim", "batch=1").stdout


def test_devices_lists_and_explains() -> None:
    """The catalogue and this machine; or one cluster with its links and assumptions."""
    text = run("devices").stdout
    for name in ("H100", "A100-80GB", "L4", "V100", "P100", "K80", "Flex-170", "i9-12900K", "this"):
        assert name in text
    assert "transfers: staged" in run("devices", "2xL4,cpu").stdout
    assert len(json.loads(run("devices", "2xL4,cpu", "--json").stdout)["devices"]) == 3


def test_the_same_seed_gives_the_same_plan() -> None:
    """Two runs agree on every op, also in a process that orders its sets in another way."""
    asked = ("place", BERT, "-d", "2xA100,cpu", "--dim", "batch=1", "--dim", "seq=32", "--json")
    first, second = (json.loads(done.stdout) for done in (run(*asked), run_apart(*asked, PYTHONHASHSEED="1")))
    assert first["assignment"] == second["assignment"] and first["value"] == second["value"]


def test_words_of_the_user_are_printed_as_they_are(tmp_path: Path) -> None:
    """Brackets in names of devices and files are no markup; lines into a pipe end without spaces."""
    devices, plan = tmp_path / "a.toml", tmp_path / "x[bold].json"
    devices.write_text('[[devices]]\nname = "a[/b]"\n[default_link]\nbandwidth = "1GB/s"\n')
    text = run("devices", devices).stdout
    assert "a[/b]" in text and not any(line.endswith(" ") for line in text.splitlines())
    text = run("place", workload(tmp_path / "w.json"), "--placer", "single", "-o", plan).stdout
    assert text.endswith("x[bold].json\n") and plan.exists()
    assert not any(line.endswith(" ") for line in text.splitlines())
    assert run("inspect", RESNET, "--dim", "batch=1").stdout.startswith("ops ")


def test_control_characters_of_names(tmp_path: Path) -> None:
    """They are written out in results, notes and errors; JSON has its own escapes."""
    name = "a\x1b[31m\nb"
    path = tmp_path / "c.toml"
    path.write_text('[[devices]]\nname = "a\\u001b[31m\\nb"\n[default_link]\nbandwidth = "1GB/s"\n')
    assert r"a\x1b[31m\x0ab" in run("devices", path).stdout
    done = run("devices", path, "--json")
    assert r"a\u001b[31m\nb" in done.stdout and json.loads(done.stdout)["devices"][0]["name"] == name
    done = run("place", f"{tmp_path}/{name}.onnx", "-d", "cpu", code=2)
    assert r"a\x1b[31m\x0ab.onnx" in done.stderr and done.stderr.count("\n") == 1 and "\x1b" not in done.stderr


@pytest.mark.parametrize("quiet", [False, True])
def test_control_characters_of_log_lines(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """Placewise's own log lines are one line each; --quiet has none."""
    log = logging.getLogger("placewise")
    before = log.handlers, log.level, log.propagate
    try:
        listen(quiet)
        log.info("took %s", "a\x1b[31m\nb")
    finally:
        log.handlers, log.propagate = before[0], before[2]
        log.setLevel(before[1])
    assert capsys.readouterr().err == ("" if quiet else "took a\\x1b[31m\\x0ab\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        ("> /dev/full", 2, "standard output cannot be written (no space left on device)"),
        (">&-", 2, "standard output cannot be written (it is closed)"),
        ("2> /dev/full > /dev/null", 0, ""),
        ("| true", 141, ""),
    ],
)
@pytest.mark.parametrize("arguments", ["devices", later("devices --json")])
def test_standard_output_that_cannot_be_written(arguments: str, redirected: str, code: int, said: str) -> None:
    """One sentence and exit code 2, or silence and 141 where nobody reads; full standard error disturbs nothing."""
    command = f"{sys.executable} -c 'from placewise.cli import main; main()' {arguments} {redirected}"
    done = subprocess.run(
        ["bash", "-c", command + "; exit ${PIPESTATUS[0]}"], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr
    assert done.stderr.strip() == (f"error: {said}" if said else "")


def test_terminals_without_our_characters() -> None:
    """In ASCII what it lacks is a question mark, and JSON is escaped and whole."""
    command = [sys.executable, "-c", "from placewise.cli import main; main()", "devices"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=ascii_only)
    assert done.returncode == 0 and "?" in done.stdout and not done.stderr
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300, env=ascii_only)
    assert json.loads(done.stdout) == json.loads(run("devices", "--json").stdout)


def interrupted(*arguments: object, when: str) -> subprocess.CompletedProcess[str]:
    """The command, sent SIGINT by itself when `when`, a line of Python in front of `main()`, says so."""
    script = f"import os, signal, sys\n{when}\nfrom placewise.cli import main\nmain()"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("module", ["typer", "numpy", "placewise.core.build", "ortools"])
def test_ctrl_c_during_imports_is_one_word(module: str) -> None:
    """SIGINT as a module is looked for: "interrupted", 130, even where the import turns it into another error."""
    finder = (
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            try: os.kill(os.getpid(), signal.SIGINT)\n"
        "            except KeyboardInterrupt: raise RuntimeError('died of it')\n"
        "sys.meta_path.insert(0, Finder())"
    )
    done = interrupted("place", RESNET, "-d", "2xL4", "--dim", "batch=1", when=finder)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (130, "interrupted", "")


def test_python_m_ends_with_130_where_generated_code_is_interrupted(tmp_path: Path) -> None:
    """As when dataclasses are made: Python would call that an end by SIGINT, whatever the signal and the exit code."""
    script = (
        "import signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy': exec('signal.raise_signal(signal.SIGTERM)')\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from placewise.cli import main\n"
        "main()\n"
    )
    (tmp_path / "ended.py").write_text(script)
    command = [sys.executable, "-m", "ended", "devices", "2xL4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert (done.returncode, done.stderr.strip(), done.stdout) == (130, "interrupted", "")


def test_ctrl_c_in_compare_keeps_what_is_finished(tmp_path: Path) -> None:
    """SIGINT in the second placer: the first one's line stays, the others say why they have none, exit code 130."""
    when = (
        "import placewise.placers.pipeline_dp.placer as dp\n"
        "def propose(*args, **kwargs): os.kill(os.getpid(), signal.SIGINT)\n"
        "dp.DpPlacer.propose = propose"
    )
    path = workload(tmp_path / "w.json")
    done = interrupted("compare", path, "--placers", "balanced,dp,single", "--json", when=when)
    assert done.returncode == 130 and done.stderr.strip().endswith("interrupted")
    entries = {entry["placer"]: entry for entry in json.loads(done.stdout)["entries"]}
    assert entries["balanced"]["value"] == pytest.approx(0.009)
    assert entries["dp"]["reason"] == "interrupted" and "interrupted" in entries["single"]["refusal"]


def test_compare_of_what_is_infeasible(tmp_path: Path) -> None:
    """Where a placer proves that there is no placement, the exit code is 3 and no infinite bound is shown."""
    path = workload(tmp_path / "w.json", maxSizePerFPGA=30.0, maxCPUs=0)
    text = run("compare", path, "--placers", "dp,single", code=3).stdout
    assert "infeasible: " in text and "∞" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("place", "no_such.onnx", "-d", "cpu"), "cannot be read"),
        (("place", "{tmp}/text.txt", "-d", "cpu"), "not an ONNX model"),
        (("place", "{tmp}/cut.onnx", "-d", "cpu", "--dim", "batch=1"), "cut off"),
        (("place", "{tmp}/cycle.json"), "cycle"),
        (("place", "{tmp}/nan.json"), "node 0: cpuLatency is nan"),
        (("place", "{tmp}/negative.json"), "cost is -1"),
        (("place", "{tmp}/missing.json"), "has no 'fpgaLatency'"),
        (("place", "{tmp}/nowhere.json"), "joins node 9, which does not exist"),
        (("place", RESNET, "-d", "2xL4"), "--dim batch=1"),
        (("place", RESNET, "-d", "2xL4", "--dim", "batch=many"), "is not a size"),
        (("place", RESNET, "-d", "2xL4", "--dim", "batches=1", "--dim", "batch=1"), "no dimension 'batches'"),
        (("place", RESNET, "-d", "2xGTX9000", "--dim", "batch=1"), "no device called 'GTX9000'"),
        (("place", RESNET, "-d", "{tmp}/slow.toml", "--dim", "batch=1"), "slow.toml"),
        (("place", RESNET, "--dim", "batch=1"), "no devices are given"),
        (("place", RESNET, "-d", "cpu", "--dim", "batch=1", "-o", "{tmp}/no/plan.json"), "make the directory"),
        (("place", RESNET, "-d", "cpu", "--dim", "batch=1", "--placer", "oracle"), "choose from auto"),
        (("place", RESNET, "-d", "cpu", "--dim", "batch=1", "--placer", "dp"), "cannot take this problem"),
        (
            ("place", RESNET, "-d", "cpu", "--dim", "batch=1", "--placer", "dp", "--option", "speed=9"),
            "no option 'speed'",
        ),
        (("place", RESNET, "-d", "cpu", "--dim", "batch=1", "--time-limit", "soon"), "not a time"),
        (("place", RESNET, "-d", "cpu", "--dim", "batch=1", "--pin", "fc"), "--pin 'fc' has no '='"),
        (("simulate", RESNET, "{tmp}/text.txt", "--dim", "batch=1"), "not JSON"),
        (("check", RESNET, "{tmp}/none.json"), "error: {tmp}/none.json: cannot be read"),
        (("place", "{tmp}/nan.json", "--view", "zz"), "there is no view 'zz'"),
        (("inspect", RESNET, "--dim", "=3"), "--dim '=3' has no name"),
        (("place", RESNET, "-d", "cpu", "--pin", "m="), "--pin 'm=' has no value"),
        (("simulate", RESNET, "{tmp}/other.json", "--dim", "batch=1"), "another model"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    """Exit code 2, nothing on standard output, one sentence with the place and the remedy on standard error."""
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "cut.onnx").write_bytes(Path(RESNET).read_bytes()[:9000])
    (tmp_path / "slow.toml").write_text('[[devices]]\nmodel = "L4"\ncount = 2\n[default_link]\nbandwidth = 0\n')
    (tmp_path / "other.json").write_text(
        json.dumps({"format": "placewise-plan", "version": 1, "assignment": {"x": "cpu"}, "graph_hash": "0" * 64,
                    "cluster": cluster_to_dict(read_cluster("cpu"))})
    )  # fmt: skip
    edges = [{"sourceId": s, "destId": d, "cost": 1.0} for s, d in ((0, 1), (1, 0))]
    workload(tmp_path / "cycle.json", edges=edges)
    workload(tmp_path / "nowhere.json", edges=[{"sourceId": 0, "destId": 9, "cost": 1.0}])
    workload(tmp_path / "negative.json", edges=[{"sourceId": 0, "destId": 1, "cost": -1}])
    workload(tmp_path / "nan.json", nodes=[{"id": 0, "cpuLatency": float("nan"), "fpgaLatency": 1.0, "size": 1}])
    workload(tmp_path / "missing.json", nodes=[{"id": 0, "cpuLatency": 1.0, "size": 1}])
    done = run(*(text.replace("{tmp}", str(tmp_path)) for text in arguments), code=2)
    assert message.replace("{tmp}", str(tmp_path)) in done.stderr and not done.stdout
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_training_graph_of_a_profile(tmp_path: Path) -> None:
    """`--graph training` places forward and backward; the plan checks without it; a CPU alone is refused."""
    profile, plan = tmp_path / "profile.txt", tmp_path / "plan.json"
    figures = "forward_compute_time=2.0, backward_compute_time=4.0, activation_size=8.0, parameter_size=4.0"
    profile.write_text(f"node1 -- Add -- {figures}\nnode2 -- Add -- {figures}\n\tnode1 -- node2\n")
    done = run("place", profile, "-d", "2xV100-16GB", "--graph", "training", "--objective", "throughput", "-o", plan)
    assert "proved optimal" in done.stdout
    assert set(json.loads(plan.read_text())["assignment"]) == {"node1", "node2", "node1.backward", "node2.backward"}
    run("check", profile, plan)
    assert "forward" not in done.stdout
    assert "the cluster has none" in run("place", profile, "-d", "cpu", code=2).stderr


def test_a_model_is_trained(tmp_path: Path) -> None:
    """`--graph training` adds a backward pass and the optimizer; the plan keeps both, and bad options are refused."""
    plan = tmp_path / "plan.json"
    asked = (RESNET, "-d", "2xL4,cpu", "--dim", "batch=2", "--graph", "training", "--optimizer", "momentum")
    run("place", *asked, "--objective", "throughput", "-o", plan)
    made = json.loads(plan.read_text())
    assert made["source"]["transforms"][-1] == "training:momentum"
    assert run("simulate", RESNET, plan).stdout.splitlines()[0].startswith("time per sample")
    adam, momentum, forward = (
        json.loads(run("inspect", RESNET, "--dim", "batch=2", "--json", *wish).stdout)
        for wish in (("--graph", "training"), ("--graph", "training", "--optimizer", "momentum"), ())
    )
    assert adam["state_bytes"] == 2 * momentum["state_bytes"] > forward["state_bytes"] == 0
    assert 2.9 * forward["flops"] < adam["flops"] < 3.2 * forward["flops"]
    head = ("--freeze", "^(?!fc)", "--graph", "training")
    last = json.loads(run("inspect", RESNET, "--dim", "batch=2", "--json", *head).stdout)
    assert 0 < last["state_bytes"] < adam["state_bytes"] / 10 and last["flops"] < 1.1 * forward["flops"]
    run("place", RESNET, "-d", "2xL4,cpu", "--dim", "batch=2", *head, "-o", plan, "--time-limit", "2s")
    assert run("simulate", RESNET, plan).stdout.startswith("latency")
    assert "regular expressions" in run("inspect", RESNET, "--graph", "training", "--freeze", "(", code=2).stderr
    assert "add --graph training" in run("inspect", RESNET, "--freeze", "fc", code=2).stderr
    assert "choose adam or" in run("inspect", RESNET, "--graph", "training", "--optimizer", "x", code=2).stderr
    assert "add --graph training" in run("inspect", RESNET, "--optimizer", "adam", code=2).stderr
    raw = run("inspect", RESNET, "--dim", "batch=2", "--graph", "training", "--view", "raw", code=2)
    assert "leave out --view raw" in raw.stderr


def test_the_zoo() -> None:
    """Workloads are listed and shown, and go wherever a model goes."""
    listed = json.loads(run("zoo", "list", "--json").stdout)
    assert {"gnmt-8", "rnnlm-2", "wavenet-4x36"} <= {entry["name"] for entry in listed}
    assert "zoo:gnmt-8" in run("zoo", "list").stdout
    assert "batch" in run("zoo", "show", "zoo:rnnlm-2").stdout
    found = json.loads(run("inspect", "zoo:rnnlm-2", "--dim", "batch=2", "--json").stdout)
    assert any(text.startswith("words: 20×2 ") for text in found["inputs"])
    assert "has no 'rnnlm-3'" in run("inspect", "zoo:rnnlm-3", code=2).stderr
    assert "has no dimension 'heads'" in run("inspect", "zoo:rnnlm-2", "--dim", "heads=2", code=2).stderr


def test_a_pipeline_that_flushes(tmp_path: Path) -> None:
    """`--schedule gpipe` adds up two phases, says both per device, is kept by the plan, and is refused for latency."""
    profile, plan = tmp_path / "profile.txt", tmp_path / "plan.json"
    lines = [
        f"node{i} -- Add -- forward_compute_time={fore}, backward_compute_time={back}, activation_size=0, "
        "parameter_size=4"
        for i, (fore, back) in enumerate(((4.0, 2.0), (2.0, 4.0)))
    ]
    profile.write_text("\n".join([*lines, "\tnode0 -- node1"]) + "\n")
    common = ("-d", "2xV100-16GB", "--graph", "training", "--objective", "throughput")
    plain = json.loads(run("place", profile, *common, "--json").stdout)
    done = run("place", profile, *common, "--schedule", "gpipe", "-o", plan)
    assert "(gpipe)" in done.stdout and "forward" in done.stdout and "backward" in done.stdout
    document = json.loads(plan.read_text())
    assert plain["value"] == pytest.approx(6e-3, rel=1e-2) and plain["objective"]["schedule"] == "1f1b"
    assert document["value"] == pytest.approx(8e-3, rel=1e-2) and document["status"] == "optimal"
    assert document["objective"]["schedule"] == "gpipe"
    for use in document["devices"]:
        assert use["load"] == pytest.approx(use["forward"] + use["backward"])
    judged = json.loads(run("simulate", profile, plan, "--json").stdout)
    assert judged["value"] == document["value"]
    other = json.loads(run("simulate", profile, plan, "--schedule", "1f1b", "--json").stdout)
    assert other["value"] <= judged["value"] and other["devices"][0]["forward"] is None
    run("check", profile, plan)
    refused = run("place", profile, *common[:4], "--schedule", "gpipe", code=2)
    assert "a schedule applies to throughput only" in refused.stderr
    unknown = run("place", profile, *common, "--schedule", "zigzag", code=2)
    assert "choose from 1f1b, gpipe" in unknown.stderr


def test_stages_that_devices_share(tmp_path: Path) -> None:
    """`--replicas any` from the profile to the plan and back: report, file, price, check, and what is refused."""
    profile, plan = tmp_path / "profile.txt", tmp_path / "plan.json"
    figures = "backward_compute_time=4.0, activation_size=8e6, parameter_size=4e6"
    lines = [f"node{i} -- Conv2d(3, 3) -- forward_compute_time={2 + 4 * i}, {figures}" for i in range(3)]
    profile.write_text("\n".join([*lines, "\tnode0 -- node1", "\tnode1 -- node2"]) + "\n")
    common = ("-d", "5xV100-16GB", "--graph", "training", "--objective", "throughput")
    alone = json.loads(run("place", profile, *common, "--json").stdout)
    done = run("place", profile, *common, "--replicas", "any", "-o", plan)
    assert "proved optimal" in done.stdout and "share one stage (×" in done.stdout
    assert "synchronization" in done.stdout
    document = json.loads(plan.read_text())
    assert document["value"] < alone["value"] and document["constraints"]["replicas"] == 0
    assert document["replicas"] and set(document["replicas"].values()) <= set(document["assignment"].values())
    for use in document["devices"]:
        assert use["repeats"] == document["replicas"].get(use["device"], "")
    judged = json.loads(run("simulate", profile, plan, "--json").stdout)
    assert judged["value"] == document["value"] and judged["valid"]
    run("check", profile, plan)
    assert "at most 1 may" in run("check", profile, plan, "--replicas", "1", code=3).stdout
    longer = json.loads(run("simulate", profile, plan, "--step-samples", "1000", "--json").stdout)
    assert longer["value"] < judged["value"]
    assert "replicas" in run("place", profile, *common, "--replicas", "some", code=2).stderr
    refused = run("place", profile, *common[:4], "--replicas", "2", code=2)
    assert "apply to throughput only" in refused.stderr


def test_what_takes_longest(tmp_path: Path) -> None:
    """`inspect -d` and `place --details` list ops, modules and parts; the same in JSON; costs need devices."""
    small = ("zoo:bert-base", "-d", "2xL4,cpu")
    shown = run("inspect", *small).stdout
    assert "slowest modules" in shown and "cuda:0 – cuda:1" in shown
    found = json.loads(run("inspect", *small, "--json").stdout)
    assert len(found["slowest_ops"]) == 10 and set(found["slowest_ops"][0]["by_device"]) == {"cuda:0", "cuda:1", "cpu"}
    assert json.loads(run("inspect", "zoo:bert-base", "--json").stdout)["slowest_ops"] == []
    assert "give the devices too" in run("inspect", "zoo:bert-base", "--costs", "x.csv", code=2).stderr
    search = ("--objective", "throughput", "--placer", "balanced", "-q")
    plan = tmp_path / "plan.json"
    shown = run("place", *small, *search, "--details", "-o", plan).stdout
    assert "weights and state" in shown and "slowest ops" in shown
    assert shown.index("layers ") < shown.index("load")
    found = json.loads(run("place", *small, *search, "--details", "--json").stdout)
    assert [sum(part["ops"] for part in parts) for parts in found["parts"].values()] == [
        use["ops"] for use in found["devices"]
    ]
    assert len(found["slowest_modules"]) == 10 and found["tokens_per_second"] is None
    assert "layers " in run("check", "zoo:bert-base", plan).stdout
    assert json.loads(run("check", "zoo:bert-base", plan, "--json").stdout)["parts"] == found["parts"]
    assert json.loads(run("judge", "zoo:bert-base", plan, "--json").stdout)["parts"] == found["parts"]
    other = tmp_path / "other.json"
    run("place", *small, "--placer", "single", "-q", "-o", other)
    assert "the whole model" in run("diff", other, plan).stdout
    assert "cuda:0 holds the whole model" in run("explain", other, "layer.3.attention").stdout
