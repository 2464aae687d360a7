#!/usr/bin/env python3
"""AMT-S (the frame between two) and MUSIQ (the score of a frame) at their published widths with random weights: seconds and peak memory of
MegaSlide and of PyTorch, interleaved.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_scoring_entry
    bench/peers/compare_scoring.py build/release/lib/libbench_scoring_entry.so [--threads 2] [--network amt musiq]

Wants torch and safetensors in this Python. PyTorch's side is amt_torch.py and musiq_torch.py. Both read one file and the same bytes. A ratio
is the median over rounds of PyTorch's seconds by the program's; memory is the peak of a process of its own (VmHWM) that loads the weights
and runs once, the program's without torch in it. On a machine that is busy, `--threads 1 --cpu-seconds` says most: seconds are then those
that the process had a core.
"""
import argparse
import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

from interleaved import interleaved_seconds

SIZES = {"amt": (480, 832), "musiq": (1080, 1920)}


def peak_bytes():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


def picture(h, w, moved=0):
    """Smooth waves, `moved` pixels to the left and up."""
    across = [[127.5 + 60 * math.sin(0.13 * (x + moved) + c) for c in range(3)] for x in range(w)]
    down = [60 * math.sin(0.11 * (y + moved)) for y in range(h)]
    return b"".join(bytes(int(v + down[y]) for cell in across for v in cell) for y in range(h))


class Ours:
    def __init__(self, library, network, weights, threads):
        self.lib = ctypes.CDLL(os.path.abspath(library))
        self.lib.ms_scoring_open.restype = ctypes.c_void_p
        self.lib.ms_musiq_score.restype = ctypes.c_double
        self.session = ctypes.c_void_p(self.lib.ms_scoring_open(network.encode(), weights.encode(), threads))
        assert self.session.value

    def predict(self, a, b, h, w):
        out = (ctypes.c_float * (3 * (h + -h % 16) * (w + -w % 16)))()
        assert self.lib.ms_amt_predict(self.session, a, b, ctypes.c_int64(h), ctypes.c_int64(w), out) == 0
        return out

    def score(self, rgb, h, w):
        return self.lib.ms_musiq_score(self.session, rgb, ctypes.c_int64(h), ctypes.c_int64(w))


def ours(args, network, weights, h, w):
    o, a, b = Ours(args.library, network, weights, args.threads), picture(h, w), picture(h, w, 2)
    return (lambda: o.predict(a, b, h, w)) if network == "amt" else (lambda: o.score(a, h, w))


def theirs(args, network, weights, h, w):
    import torch
    from safetensors.torch import load_file
    torch.set_num_threads(args.threads)

    def rgb(moved):
        return torch.frombuffer(bytearray(picture(h, w, moved)), dtype=torch.uint8).view(h, w, 3)

    def planes(moved):
        across, down = -w % 16, -h % 16
        x = rgb(moved).permute(2, 0, 1)[None].float() / 255
        return torch.nn.functional.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2), mode="replicate")

    def without_gradients(run):
        with torch.no_grad():
            return run()

    if network == "amt":
        import amt_torch
        n, a, b = amt_torch.Network(load_file(weights)), planes(0), planes(2)
        return lambda: without_gradients(lambda: n.predict(a, b))
    import musiq_torch
    n, a = musiq_torch.Network(load_file(weights)), rgb(0)
    return lambda: without_gradients(lambda: n.score(a))


def difference(network, mine, other):
    import torch
    if network == "musiq":
        return abs(mine - other)
    return float((torch.frombuffer(mine, dtype=torch.float32) - other.flatten()).abs().max())


def compare(args, network, folder):
    import torch
    from safetensors.torch import save_file
    import amt_torch
    import musiq_torch
    torch.manual_seed(0)
    h, w = args.size or SIZES[network]
    weights = os.path.join(folder, network + ".safetensors")
    save_file((amt_torch if network == "amt" else musiq_torch).random_weights(), weights)
    programs = {"torch": theirs(args, network, weights, h, w), "megaslide": ours(args, network, weights, h, w)}
    apart = difference(network, programs["megaslide"](), programs["torch"]())
    seconds = interleaved_seconds(programs, args.rounds, time.process_time if args.cpu_seconds else time.perf_counter)
    ratios = [a / b for a, b in zip(seconds["torch"], seconds["megaslide"])]
    record = {"network": network, "size": [h, w], "threads": args.threads, "seconds": "of the process" if args.cpu_seconds else "of a clock"}
    record |= {key + "_s": round(statistics.median(s), 3) for key, s in seconds.items()}
    record |= {"times": round(statistics.median(ratios), 2), "largest_difference": float(f"{apart:.2e}")}
    if args.memory:
        for who in programs:
            command = [sys.executable, os.path.abspath(__file__), args.library, "--role", who, "--weights", weights, "--network", network, "--threads",
                       str(args.threads), "--size", str(h), str(w)]
            record[who + "_peak_gb"] = round(int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split()[-1]) / 1e9, 3)
    print(json.dumps(record), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_scoring_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cpu-seconds", action="store_true", help="of all threads together, in place of those of a clock")
    parser.add_argument("--network", nargs="+", default=["amt", "musiq"], choices=["amt", "musiq"])
    parser.add_argument("--size", type=int, nargs=2, metavar=("HEIGHT", "WIDTH"), help="480 832 for AMT, 1080 1920 for MUSIQ")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="times alone")
    parser.add_argument("--role", choices=["megaslide", "torch"], help=argparse.SUPPRESS)
    parser.add_argument("--weights", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        (ours if args.role == "megaslide" else theirs)(args, args.network[0], args.weights, *args.size)()
        return print(peak_bytes())
    with tempfile.TemporaryDirectory(prefix="megaslide-peer-") as folder:
        for network in args.network:
            compare(args, network, folder)


if __name__ == "__main__":
    main()
