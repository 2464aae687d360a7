#!/usr/bin/env python3
"""AdamW over 100 M parameters: parameters/s of MegaSlide's codecs, of torch.optim.AdamW(fused=True) and, with --deepspeed,
of DeepSpeed's CPUAdam (which compiles itself at its first use), interleaved.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_adamw_entry
    bench/peers/compare_adamw.py build/release/lib/libbench_adamw_entry.so [--threads 2] [--parameters 100000000]

Ratios are of seconds on the clock and of processor seconds, which hold when other programs run as well.

Without torch (or DeepSpeed) in this Python, makes a throw-away virtual environment, installs them there and runs itself in it.
The CPU wheels are PyTorch's own index; --index chooses another.
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

MASTERS, MOMENTS = ("split", "fp32", "bf16-sr"), ("fp32", "bf16", "int8")


def rerun_with(packages, index):
    with tempfile.TemporaryDirectory(prefix="megaslide-peer-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = os.path.join(folder, "bin", "python")
        command = [python, "-m", "pip", "install", "-q"]
        subprocess.run(command + ["torch", "numpy"] + (["--index-url", index] if index else []), check=True)
        if packages:
            subprocess.run(command + packages, check=True)
        sys.exit(subprocess.run([python] + sys.argv).returncode)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_adamw_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--codecs", default="fp32/fp32,split/fp32,split/bf16,split/int8,bf16-sr/bf16,bf16-sr/int8",
                        help="pairs of a master and a moment codec")
    parser.add_argument("--index", default="", help="pip index for torch (default: pip's own)")
    parser.add_argument("--deepspeed", action="store_true", help="beside DeepSpeed's CPUAdam too")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # read when the libraries are loaded
    try:
        import torch
        if args.deepspeed:
            from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError:
        rerun_with(["deepspeed", "ninja"] if args.deepspeed else [], args.index)

    torch.set_num_threads(args.threads)
    n, rate, decay = args.parameters, 1e-4, 0.01
    library = ctypes.CDLL(os.path.abspath(args.library))
    library.ms_pool.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(library.ms_pool(args.threads))

    def address(tensor):
        return ctypes.c_void_p(tensor.data_ptr() if tensor is not None else None)

    torch.manual_seed(0)
    start = torch.randn(n) * 0.02
    gradient = torch.randn(n) * 1e-3
    gradient16 = gradient.to(torch.bfloat16)
    parameter = torch.nn.Parameter(start.clone())
    parameter.grad = gradient
    optimizer = torch.optim.AdamW([parameter], lr=rate, weight_decay=decay, fused=True)
    step = 0

    class Ours:
        """One pair of codecs. With `like_torch`: no bf16 weight and fp32 gradients, the streams of torch's own."""

        def __init__(self, masters, moments, like_torch=False):
            self.codecs = (MASTERS.index(masters), MOMENTS.index(moments))
            self.p = start.clone() if masters == "fp32" else None
            self.w = None if like_torch else start.to(torch.bfloat16)
            self.r = torch.zeros(n, dtype=torch.int16) if masters == "split" else None
            dtype = (torch.float32, torch.bfloat16, torch.int8)[self.codecs[1]]
            self.m, self.v = torch.zeros(n, dtype=dtype), torch.zeros(n, dtype=dtype)
            self.scales = [torch.zeros((n + 255) // 256) for _ in range(2)]
            self.gradient = gradient if like_torch else gradient16
            self.bf16_gradient = 0 if like_torch else 1

        def __call__(self):
            arrays = map(address, (self.p, self.w, self.r, self.m, self.v, *self.scales, self.gradient))
            library.ms_adamw(pool, *self.codecs, *arrays, self.bf16_gradient, ctypes.c_int64(n), ctypes.c_double(rate),
                             ctypes.c_double(decay), ctypes.c_int64(step))

    same_streams = Ours("fp32", "fp32", like_torch=True)
    programs = {"torch fused": optimizer.step, "megaslide fp32, as torch": same_streams}
    if args.deepspeed:
        theirs = torch.nn.Parameter(start.clone())
        theirs.grad = gradient
        programs["deepspeed CPUAdam"] = DeepSpeedCPUAdam([theirs], lr=rate, weight_decay=decay, adamw_mode=True).step
    for name in args.codecs.split(","):
        programs["megaslide " + name] = Ours(*name.split("/"))
    seconds, cpu_seconds = ({name: [] for name in programs} for _ in range(2))
    for turn in range(args.rounds + 1):
        step += 1
        for name, run in programs.items():
            begin, cpu_begin = time.perf_counter(), time.process_time()
            run()
            if turn:  # the first turn touches the pages
                seconds[name].append(time.perf_counter() - begin)
                cpu_seconds[name].append(time.process_time() - cpu_begin)
        if not turn:
            # One step from the same state: fp32 masters must agree to rounding.
            difference = (same_streams.p - parameter.detach()).abs().max().item()
            assert difference < 1e-7, difference
    print(f"torch {torch.__version__}, {args.threads} threads, {n} parameters, {args.rounds} interleaved rounds",
          file=sys.stderr)

    def ratio(of, peer, name):
        return round(statistics.median(a / b for a, b in zip(of[peer], of[name])), 3)

    for name, times in seconds.items():
        row = {"program": name, "gparameters_per_s": round(n / statistics.median(times) * 1e-9, 3), "best": round(n / min(times) * 1e-9, 3)}
        for peer, word in (("torch fused", "torch"), ("deepspeed CPUAdam", "deepspeed")):
            if peer in programs:
                row[f"ratio_to_{word}"] = ratio(seconds, peer, name)
                row[f"cpu_ratio_to_{word}"] = ratio(cpu_seconds, peer, name)
        print(json.dumps(row))


if __name__ == "__main__":
    main()
