#!/usr/bin/env python3
"""RAFT at its published widths with random weights, one pair of frames: seconds and peak memory of MegaSlide and of PyTorch.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_raft_entry
    bench/peers/compare_raft.py build/release/lib/libbench_raft_entry.so [--threads 2] [--rounds 3] [--size 480 832]

Needs torch and safetensors in this Python. The network on PyTorch's side is written here in plain operations, with the
volume of all pairs, as the published code has it, and the mask head once at the end. Times are medians of interleaved rounds, cpu_s
those of all threads together; memory is the peak of a process of its own (VmHWM) that loads the weights and computes one
flow.
"""
import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def peak_bytes():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def pictures(h, w):
    """Two pictures of smooth waves, the second moved by 3 and 2 pixels."""
    import math
    def byte(y, x, c):
        return int(127.5 + 60 * math.sin(0.13 * x + 0.07 * y + c) + 60 * math.sin(0.031 * x * (1 + c) - 0.11 * y))
    rows = [[byte(y, x, c) for x in range(w + 3) for c in range(3)] for y in range(h + 2)]
    first = bytes(v for r in rows[:h] for v in r[:3 * w])
    second = bytes(v for r in rows[2:] for v in r[9:])
    return first, second


class Ours:
    def __init__(self, library, weights, threads):
        self.lib = ctypes.CDLL(os.path.abspath(library))
        self.lib.ms_raft_open.restype = ctypes.c_void_p
        self.session = ctypes.c_void_p(self.lib.ms_raft_open(weights.encode(), threads))
        assert self.session

    def flow(self, a, b, h, w, iterations, out):
        assert self.lib.ms_raft_flow(self.session, a, b, ctypes.c_int64(h), ctypes.c_int64(w), iterations, ctypes.c_void_p(out)) == 0


def random_weights(path):
    """Published names and shapes; magnitudes that keep maps near 1."""
    import torch
    from safetensors.torch import save_file
    torch.manual_seed(0)
    t = {}

    def conv(name, out, into, kh, kw=None, gain=2.0):
        kw = kw or kh
        t[f"module.{name}.weight"] = torch.randn(out, into, kh, kw) * (gain / (into * kh * kw)) ** 0.5
        t[f"module.{name}.bias"] = 0.1 * torch.randn(out)

    def norm(name, width):
        t[f"module.{name}.weight"] = 1 + 0.1 * torch.randn(width)
        t[f"module.{name}.bias"] = 0.1 * torch.randn(width)
        t[f"module.{name}.running_mean"] = 0.1 * torch.randn(width)
        t[f"module.{name}.running_var"] = 1 + 0.5 * torch.rand(width)
        t[f"module.{name}.num_batches_tracked"] = torch.tensor(1)

    for net in ("fnet", "cnet"):
        conv(f"{net}.conv1", 64, 3, 7)
        if net == "cnet":
            norm("cnet.norm1", 64)
        into = 64
        for layer, width in ((1, 64), (2, 96), (3, 128)):
            for b in range(2):
                p = f"{net}.layer{layer}.{b}"
                conv(f"{p}.conv1", width, into, 3)
                conv(f"{p}.conv2", width, width, 3)
                if net == "cnet":
                    norm(f"{p}.norm1", width)
                    norm(f"{p}.norm2", width)
                if into != width:
                    conv(f"{p}.downsample.0", width, into, 1)
                    if net == "cnet":
                        norm(f"{p}.norm3", width)
                        for key in [k for k in t if k.startswith(f"module.{p}.norm3")]:
                            t[key.replace("norm3", "downsample.1")] = t[key].clone()
                into = width
        conv(f"{net}.conv2", 256, 128, 1, gain=1.0)
    u = "update_block"
    conv(f"{u}.encoder.convc1", 256, 324, 1)
    conv(f"{u}.encoder.convc2", 192, 256, 3)
    conv(f"{u}.encoder.convf1", 128, 2, 7)
    conv(f"{u}.encoder.convf2", 64, 128, 3)
    conv(f"{u}.encoder.conv", 126, 256, 3)
    for gate in "zrq":
        conv(f"{u}.gru.conv{gate}1", 128, 384, 1, 5, gain=1.0)
        conv(f"{u}.gru.conv{gate}2", 128, 384, 5, 1, gain=1.0)
    conv(f"{u}.flow_head.conv1", 256, 128, 3)
    conv(f"{u}.flow_head.conv2", 2, 256, 3, gain=0.1)
    conv(f"{u}.mask.0", 256, 128, 3)
    conv(f"{u}.mask.2", 576, 256, 1)
    save_file(t, path)


def torch_flow(t, a, b, h, w, iterations):
    """The network in plain operations: t maps names without the prefix to tensors."""
    import torch
    import torch.nn.functional as F

    def conv(x, name, stride=1):
        weight = t[name + ".weight"]
        return F.conv2d(x, weight, t[name + ".bias"], stride, (weight.shape[2] // 2, weight.shape[3] // 2))

    def normed(x, name, batch):
        if not batch:
            return F.instance_norm(x, eps=1e-5)
        return F.batch_norm(x, t[name + ".running_mean"], t[name + ".running_var"], t[name + ".weight"], t[name + ".bias"], eps=1e-5)

    def encoder(x, net):
        batch = net == "cnet"
        x = F.relu(normed(conv(x, f"{net}.conv1", 2), f"{net}.norm1", batch))
        for layer in (1, 2, 3):
            for block in (0, 1):
                p, stride = f"{net}.layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
                y = F.relu(normed(conv(x, f"{p}.conv1", stride), f"{p}.norm1", batch))
                y = F.relu(normed(conv(y, f"{p}.conv2"), f"{p}.norm2", batch))
                if stride == 2:
                    x = normed(conv(x, f"{p}.downsample.0", 2), f"{p}.downsample.1", batch)
                x = F.relu(x + y)
        return conv(x, f"{net}.conv2")

    def planes(picture):
        rgb = torch.frombuffer(bytearray(picture), dtype=torch.uint8).view(h, w, 3)
        across, down = -w % 8, -h % 8
        x = 2 * (rgb.permute(2, 0, 1)[None].float() / 255) - 1
        return F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2), mode="replicate")

    a, b = planes(a), planes(b)
    f1, f2 = encoder(torch.cat([a, b]), "fnet").split(1)
    c, rows, columns = f1.shape[1], f1.shape[2], f1.shape[3]
    volume = (f1.view(c, -1).T @ f2.view(c, -1) / c ** 0.5).view(rows * columns, 1, rows, columns)
    levels = [volume]
    for _ in range(3):
        levels.append(F.avg_pool2d(levels[-1], 2, 2))
    hidden, inputs = encoder(a, "cnet").split(128, 1)
    hidden, inputs = torch.tanh(hidden), F.relu(inputs)
    ys, xs = torch.meshgrid(torch.arange(rows).float(), torch.arange(columns).float(), indexing="ij")
    base = torch.stack([xs, ys])[None]
    offsets = torch.arange(-4, 5).float()
    window = torch.stack(torch.meshgrid(offsets, offsets, indexing="ij"), -1)  # [x, y]: x varies slowest
    flow = torch.zeros_like(base)

    def lookup(at):
        found = []
        for i, level in enumerate(levels):
            points = at.permute(0, 2, 3, 1).reshape(-1, 1, 1, 2) / 2 ** i + window[None]
            size = torch.tensor([level.shape[3] - 1, level.shape[2] - 1]).float()
            found.append(F.grid_sample(level, 2 * points / size - 1, align_corners=True).view(1, rows, columns, -1))
        return torch.cat(found, -1).permute(0, 3, 1, 2)

    u = "update_block."
    for _ in range(iterations):
        x = F.relu(conv(F.relu(conv(lookup(base + flow), u + "encoder.convc1")), u + "encoder.convc2"))
        y = F.relu(conv(F.relu(conv(flow, u + "encoder.convf1")), u + "encoder.convf2"))
        motion = torch.cat([inputs, F.relu(conv(torch.cat([x, y], 1), u + "encoder.conv")), flow], 1)
        for axis in "12":
            both = torch.cat([hidden, motion], 1)
            z = torch.sigmoid(conv(both, f"{u}gru.convz{axis}"))
            r = torch.sigmoid(conv(both, f"{u}gru.convr{axis}"))
            q = torch.tanh(conv(torch.cat([r * hidden, motion], 1), f"{u}gru.convq{axis}"))
            hidden = (1 - z) * hidden + z * q
        flow = flow + conv(F.relu(conv(hidden, u + "flow_head.conv1")), u + "flow_head.conv2")
    mask = 0.25 * conv(F.relu(conv(hidden, u + "mask.0")), u + "mask.2")
    mask = torch.softmax(mask.view(1, 1, 9, 8, 8, rows, columns), 2)
    near = F.unfold(8 * flow, 3, padding=1).view(1, 2, 9, 1, 1, rows, columns)
    return (mask * near).sum(2).permute(0, 1, 4, 2, 5, 3).reshape(2, 8 * rows, 8 * columns)


def load_torch(path):
    from safetensors.torch import load_file
    return {k.removeprefix("module."): v for k, v in load_file(path).items()}


def memory(args):
    """One flow in a process of its own; ours runs without torch in it."""
    h, w = args.size
    a, b = pictures(h, w)
    if args.role == "megaslide":
        out = (ctypes.c_float * (2 * (h + 8) * (w + 8)))()
        Ours(args.library, args.weights, args.threads).flow(a, b, h, w, args.iterations, ctypes.addressof(out))
    else:
        import torch
        torch.set_num_threads(args.threads)
        with torch.no_grad():
            torch_flow(load_torch(args.weights), a, b, h, w, args.iterations)
    print(peak_bytes())


def compare(args):
    import torch
    torch.set_num_threads(args.threads)
    h, w = args.size
    a, b = pictures(h, w)
    random_weights(args.weights)
    ours, tensors = Ours(args.library, args.weights, args.threads), load_torch(args.weights)
    got, want = torch.empty(2, h + -h % 8, w + -w % 8), {}

    def theirs_run():
        want["flow"] = torch_flow(tensors, a, b, h, w, args.iterations)

    def ours_run():
        ours.flow(a, b, h, w, args.iterations, got.data_ptr())

    seconds, busy = {}, {}
    with torch.no_grad():
        for turn in range(args.rounds + 1):
            for key, run in (("theirs", theirs_run), ("ours", ours_run)):
                begin, worked = time.perf_counter(), time.process_time()
                run()
                if turn:  # the first turn touches pages
                    seconds.setdefault(key, []).append(time.perf_counter() - begin)
                    busy.setdefault(key, []).append(time.process_time() - worked)
    theirs, mine = (statistics.median(seconds[k]) for k in ("theirs", "ours"))
    their_cpu, my_cpu = (statistics.median(busy[k]) for k in ("theirs", "ours"))
    difference = float((got - want["flow"]).abs().max() / want["flow"].abs().max())
    print(json.dumps({"torch": torch.__version__, "threads": args.threads, "size": [h, w], "iterations": args.iterations,
                      "torch_s": round(theirs, 3), "megaslide_s": round(mine, 3), "times": round(theirs / mine, 2),
                      "torch_cpu_s": round(their_cpu, 3), "megaslide_cpu_s": round(my_cpu, 3), "cpu_times": round(their_cpu / my_cpu, 2),
                      "largest_flow": float(f"{want['flow'].abs().max():.3g}"), "largest_difference": float(f"{difference:.2e}")}))
    sys.stdout.flush()
    if args.memory:
        peaks = []
        for who in ("torch", "megaslide"):
            command = [sys.executable, os.path.abspath(__file__), args.library, "--role", who, "--weights", args.weights, "--threads",
                       str(args.threads), "--iterations", str(args.iterations), "--size", str(h), str(w)]
            peaks.append(int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split()[-1]))
        print(json.dumps({"what": "peak memory", "torch_gb": round(peaks[0] / 1e9, 3), "megaslide_gb": round(peaks[1] / 1e9, 3)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_raft_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--size", type=int, nargs=2, default=[480, 832], metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="times alone")
    parser.add_argument("--role", choices=["megaslide", "torch"], help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        return memory(args)
    with tempfile.TemporaryDirectory(prefix="megaslide-peer-") as folder:
        args.weights = os.path.join(folder, "raft.safetensors")
        compare(args)


if __name__ == "__main__":
    main()
