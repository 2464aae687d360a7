#!/usr/bin/env python3
"""AdamW over 100 M parameters: parameters/s of MegaSlide and of torch.optim.AdamW(fused=True), interleaved.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_adamw_entry
    bench/peers/compare_adamw.py build/release/lib/libbench_adamw_entry.so [--threads 2] [--parameters 100000000]

Without torch in this Python, makes a throw-away virtual environment, installs torch (CPU) there and runs itself in it.
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


def rerun_with_torch(index):
    with tempfile.TemporaryDirectory(prefix="megaslide-peer-") as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        python = os.path.join(folder, "bin", "python")
        command = [python, "-m", "pip", "install", "-q", "torch", "numpy"]
        subprocess.run(command + (["--index-url", index] if index else []), check=True)
        sys.exit(subprocess.run([python] + sys.argv).returncode)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_adamw_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--index", default="", help="pip index for torch (default: pip's own)")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        rerun_with_torch(args.index)

    torch.set_num_threads(args.threads)
    n, rate, decay = args.parameters, 1e-4, 0.01
    library = ctypes.CDLL(os.path.abspath(args.library))
    library.ms_pool.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(library.ms_pool(args.threads))

    def address(tensor):
        return ctypes.c_void_p(tensor.data_ptr())

    torch.manual_seed(0)
    start = torch.randn(n) * 0.02
    gradient = torch.randn(n) * 1e-3
    parameter = torch.nn.Parameter(start.clone())
    parameter.grad = gradient
    optimizer = torch.optim.AdamW([parameter], lr=rate, weight_decay=decay, fused=True)
    p, m, v = start.clone(), torch.zeros(n), torch.zeros(n)
    w, r = start.to(torch.bfloat16), torch.zeros(n, dtype=torch.int16)
    m_split, v_split, gradient16 = torch.zeros(n), torch.zeros(n), gradient.to(torch.bfloat16)
    del start
    step = 0

    def torch_fused():
        optimizer.step()

    def fp32():
        library.ms_adamw_fp32(pool, address(p), address(m), address(v), address(gradient), ctypes.c_int64(n),
                              ctypes.c_double(rate), ctypes.c_double(decay), ctypes.c_int64(step))

    def split():
        library.ms_adamw_split(pool, address(w), address(r), address(m_split), address(v_split), address(gradient16),
                               ctypes.c_int64(n), ctypes.c_double(rate), ctypes.c_double(decay), ctypes.c_int64(step))

    programs = {"torch fused": torch_fused, "megaslide fp32": fp32, "megaslide split": split}
    seconds = {name: [] for name in programs}
    for turn in range(args.rounds + 1):
        step += 1
        for name, run in programs.items():
            begin = time.perf_counter()
            run()
            if turn:  # the first turn touches the pages
                seconds[name].append(time.perf_counter() - begin)
        if not turn:
            # One step from the same state: fp32 masters must agree to rounding.
            difference = (p - parameter.detach()).abs().max().item()
            assert difference < 1e-7, difference
    print(f"torch {torch.__version__}, {args.threads} threads, {n} parameters, {args.rounds} interleaved rounds",
          file=sys.stderr)
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(seconds["torch fused"], times)]
        print(json.dumps({"program": name, "gparameters_per_s": round(n / statistics.median(times) * 1e-9, 3),
                          "best": round(n / min(times) * 1e-9, 3),
                          "ratio_to_torch": round(statistics.median(ratios), 3)}))


if __name__ == "__main__":
    main()
