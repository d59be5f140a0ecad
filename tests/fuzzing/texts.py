"""Seeds that people write by hand: clusters, workloads, profiles of PipeDream, times, and corpora."""

LINES = (
    "2xA100-80GB,cpu", "this", "cores", "2xcore", "4×V100-16GB@10GiB, cpu", "L4 ,cpu@64GiB", "cpu,cpu,2*P100@0",
    '{"cuda:0": "20GiB", "cpu": "60GiB"}', '{"cuda:0": 1e10, "cuda:1": "0", "GPU.0": "4GB"}', "8xH100-80GB",
)  # fmt: skip

CLUSTERS = (
    """
transfers = "direct"
[[devices]]
model = "A100-80GB"
count = 2
memory = "70GiB"
reserved = "2GiB"
[[devices]]
name = "npu"
memory = "16GiB"
memory_bandwidth = "200GB/s"
peak_flops = { float16 = "50TFLOP/s", float32 = "10TFLOP/s" }
efficiency = { matmul = 0.5, memory = 0.8 }
op_overhead = "10us"
call_overhead = "50us"
streams = 2
available = true
unsupported = ["Loop"]
notes = ["a note"]
[[devices]]
model = "cpu"
[[links]]
source = "cuda:0"
target = "npu"
bandwidth = "10GB/s"
latency = "5us"
[[groups]]
devices = ["cuda:0", "cuda:1"]
bandwidth = "240GB/s"
latency = "5us"
[default_link]
bandwidth = "25Gb/s"
latency = "30us"
shared = "network"
""",
    """
[[nodes]]
count = 2
link = { bandwidth = "100Gb/s", latency = "10us" }
[[nodes.nodes]]
count = 2
devices = [{ model = "A100-80GB", count = 2 }]
link = { bandwidth = "240GB/s", latency = "5us", shared = "switch" }
[node_link]
bandwidth = "25Gb/s"
latency = "30us"
""",
    """
transfers = "staged"
[[devices]]
name = "acc"
count = 3
memory = "1GiB"
peak_flops = { float32 = 1e12 }
[[devices]]
kind = "cpu"
peak_flops = { float32 = 1e11 }
""",
)

TOPOLOGIES = (
    """\
\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tCPU Affinity
GPU0\t X \tNV1\tNV2\tSYS\tPIX\t0-19,40-59
GPU1\tNV1\t X \tPHB\tNV2\tPIX\t0-19,40-59
GPU2\tNV2\tPHB\t X \tPXB\tSYS\t20-39,60-79
GPU3\tSYS\tNV2\tPXB\t X \tSYS\t20-39,60-79
mlx5_0\tPIX\tPIX\tSYS\tSYS\t X \t
""",
    """\
\x1b[4m        GPU0    GPU1    GPU2    GPU3    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID\x1b[0m
GPU0     X      NV12    NV12    NODE    PIX     0-55            0               N/A
GPU1    NV12     X      NV12    NODE    NODE    0-55            0               N/A
GPU2    NV12    NV12     X      SYS     SYS     56-111          1               N/A
GPU3    NODE    NODE    SYS      X      SYS     56-111          1               N/A
NIC0    PIX     NODE    SYS     SYS      X

Legend:

  X    = Self
  NIC0: mlx5_0
""",
)

WORKLOAD = {
    "maxSizePerFPGA": 4000.0, "maxFPGAs": 2, "maxCPUs": 1,
    "nodes": [
        {"id": i, "name": f"layer/{i}", "cpuLatency": 2.0 + i, "fpgaLatency": 0.5, "supportedOnFpga": int(i != 3),
         "size": 100.0 * i, "isBackwardNode": int(i > 4), "colorClass": i % 5}
        for i in range(8)
    ],
    "edges": [{"sourceId": i, "destId": j, "cost": 0.25 * i, "size": 64.0}
              for i in range(8) for j in (i + 1, i + 2) if j < 8],
}  # fmt: skip

PIPER = {
    "maxMemoryPerDevice": 4000.0, "maxDevices": 4, "bandwidth": 25000.0, "mbsInBatch": 8,
    "nodes": [
        {"id": i, "name": f"layer/{i}", "TMPCs": {
            str(t): [
                {"id": name, "timePerSample": (2.0 + late) / t, "parameterSize": 200.0 / t,
                 "memoryUsageA": (500.0 - 400 * late) / t, "memoryUsageB": 300.0 / t,
                 "syncTimeFw": {str(i - 1): 16.0 * (t - 1)} if i else {},
                 "syncTimeBw": {str(i + 1): 16.0 * (t - 1)} if i < 3 else {}}
                for late, name in enumerate(("vanilla", "activation recomp"))
            ] for t in (1, 2)}}
        for i in range(4)
    ],
    "edges": [{"sourceId": i, "destId": i + 1, "communicationCost": 64.0} for i in range(3)],
}  # fmt: skip

SPLIT = {
    "fpgas": [{"nodes": [0, 1, 2, 4]}, {"nodes": [5, 6]}], "cpus": [{"nodes": [3, 7]}], "maxLoad": 12.0,
}  # fmt: skip

_NODES = (
    ("Input0", "0.000", "0.000", "0.0", "0.000"),
    ("Conv2d(3, 64, kernel_size=(3, 3))", "9.7", "4.6", "4110.0", "3763.0"),
    ("ReLU(inplace)", "0.7", "0.6", "[629; 131.0]", "0.0 -- stage_id=0"),
    ("Add(inplace)", "0.1", "0.1", "629.0", "0.0"),
    ("Linear(64, 10)", "1.1", "1.6", "40.0", "2560.0"),
)
PIPEDREAM = (
    "".join(
        f"node{row} -- {kind} -- forward_compute_time={forward}, backward_compute_time={backward}, "
        f"activation_size={activation}, parameter_size={parameters}\n"
        for row, (kind, forward, backward, activation, parameters) in enumerate(_NODES, 1)
    ).encode()
    + b"\tnode1 -- node2\n\tnode2 -- node3\n\tnode3 -- node4\n\tnode2 -- node4\n\tnode4 -- node5\n"
)

TIMES_CSV = b'op,device,seconds\na,cuda:0,0.5\nb,cpu,5us\nc,cpu,inf\n"d",cuda:1,1e-6\n'
TIMES_JSON = {"a": {"cuda:0": 0.5, "cpu": "5us"}, "b": {"*": 0.25}}
TIMES_LIST = [{"op": "a", "device": "cuda:0", "seconds": 0.5}, {"op": "b", "device": "cpu", "seconds": "1.5ms"}]

CORPUS = """
format = "placewise-corpus"
version = 1
seed = 3
problems = 12
most_ops = 400
leave_out = ["wavenet"]
executions = ["operator", "subgraph"]
policy = "gdp"
[[models]]
model = "transformer-xl-2"
weight = 2.0
graph = ["inference", "training"]
dims = { batch = { least = 1, most = 8 }, seq = [16, 32] }
[[models]]
model = "random-branchy"
dims = { n_ops = 30 }
devices = ["2xV100-16GB,cpu"]
[clusters]
devices = ["V100-16GB", "P100"]
count = { least = 2, most = 4 }
host = 0.5
speed = { least = 0.5, most = 2.0 }
[options]
samples = 4
[training]
updates = 10
teacher = "temper"
validated = 2
"""
