#!/usr/bin/env python3
"""The Wan 2.1 autoencoder at full size with random weights: seconds and peak memory of MegaSlide and of diffusers.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_vae_entry
    bench/peers/compare_vae.py build/release/lib/libbench_vae_entry.so [--threads 2] [--rounds 5] [--size 9 128 128]

Needs torch, diffusers and safetensors in this Python. Times are medians of interleaved rounds, cpu_s those of all threads together, which
say more on a machine that is busy; memory is the peak of a
process of its own (VmHWM) that loads the weights, encodes and decodes once.
"""
import argparse
import array
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def cpu_name():
    with open("/proc/cpuinfo") as f:
        lines = dict(line.split(":", 1) for line in f.read().split("\n\n")[0].splitlines() if ":" in line)
    lines = {k.strip(): v.strip() for k, v in lines.items()}
    flags = [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in lines.get("flags", "").split()]
    return f"{lines.get('model name')} family {lines.get('cpu family')} model {lines.get('model')} ({' '.join(flags)})"


def peak_bytes():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))


class Ours:
    def __init__(self, library, folder, threads, bf16):
        self.lib = ctypes.CDLL(os.path.abspath(library))
        self.lib.ms_vae_open.restype = ctypes.c_void_p
        self.session = ctypes.c_void_p(self.lib.ms_vae_open(folder.encode(), threads, int(bf16)))
        assert self.session

    def call(self, name, source, sizes, target):
        arguments = [ctypes.c_int64(n) for n in sizes]
        assert getattr(self.lib, name)(self.session, ctypes.c_void_p(source), *arguments, ctypes.c_void_p(target)) == 0


def memory_of_ours(args):
    """Runs without torch in the process."""
    f, h, w = args.size
    ours = Ours(args.library, args.folder, args.threads, args.dtype == "bf16")
    video = array.array("f", [0.25]) * (3 * f * h * w)
    latent = array.array("f", [0.0]) * (16 * ((f - 1) // 4 + 1) * (h // 8) * (w // 8))
    ours.call("ms_vae_encode", video.buffer_info()[0], (f, h, w), latent.buffer_info()[0])
    ours.call("ms_vae_decode", latent.buffer_info()[0], ((f - 1) // 4 + 1, h // 8, w // 8), video.buffer_info()[0])
    print(peak_bytes())


def memory_of_diffusers(args):
    import torch
    from diffusers import AutoencoderKLWan
    torch.set_num_threads(args.threads)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    vae = AutoencoderKLWan.from_pretrained(args.folder, torch_dtype=dtype).eval()
    with torch.no_grad():
        z = vae.encode(torch.full([1, 3] + args.size, 0.25, dtype=dtype)).latent_dist.mean
        vae.decode(z)
    print(peak_bytes())


def compare(args, folder):
    import torch
    from diffusers import AutoencoderKLWan
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    vae = AutoencoderKLWan().eval()
    vae.save_pretrained(folder)
    f, h, w = args.size
    t = (f - 1) // 4 + 1
    video = (torch.rand([3] + args.size) * 2 - 1).contiguous()
    latent = torch.randn(16, t, h // 8, w // 8)
    mean = torch.tensor(vae.config.latents_mean).view(-1, 1, 1, 1)
    deviation = torch.tensor(vae.config.latents_std).view(-1, 1, 1, 1)
    print(f"{cpu_name()}, torch {torch.__version__}, {args.threads} threads, {f} frames of {w}x{h}", file=sys.stderr)
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        if args.only and name != args.only:
            continue
        vae = vae.to(dtype)
        ours = Ours(args.library, folder, args.threads, name == "bf16")
        got_z, got_v = torch.empty_like(latent), torch.empty_like(video)
        want = {}

        def theirs_encode():
            want["z"] = (vae.encode(video[None].to(dtype)).latent_dist.mean[0].float() - mean) / deviation

        def theirs_decode():
            want["v"] = vae.decode((latent * deviation + mean)[None].to(dtype)).sample[0].float()

        def ours_encode():
            ours.call("ms_vae_encode", video.data_ptr(), (f, h, w), got_z.data_ptr())

        def ours_decode():
            ours.call("ms_vae_decode", latent.data_ptr(), (t, h // 8, w // 8), got_v.data_ptr())

        seconds, busy = {}, {}
        with torch.no_grad():
            for turn in range(args.rounds + 1):
                for key, run in (("theirs encode", theirs_encode), ("ours encode", ours_encode),
                                 ("theirs decode", theirs_decode), ("ours decode", ours_decode)):
                    begin, worked = time.perf_counter(), time.process_time()
                    run()
                    if turn:  # the first turn loads weights and touches pages
                        seconds.setdefault(key, []).append(time.perf_counter() - begin)
                        busy.setdefault(key, []).append(time.process_time() - worked)
        ours.lib.ms_vae_close(ours.session)
        for key, a, b in (("encode", got_z, want["z"]), ("decode", got_v.clamp(-1, 1), want["v"])):
            theirs, mine = (statistics.median(seconds[f"{who} {key}"]) for who in ("theirs", "ours"))
            their_cpu, my_cpu = (statistics.median(busy[f"{who} {key}"]) for who in ("theirs", "ours"))
            print(json.dumps({"dtype": name, "what": key, "diffusers_s": round(theirs, 3), "megaslide_s": round(mine, 3),
                              "times": round(theirs / mine, 2), "diffusers_cpu_s": round(their_cpu, 3),
                              "megaslide_cpu_s": round(my_cpu, 3), "cpu_times": round(their_cpu / my_cpu, 2),
                              "distance": float(f"{((a - b).norm() / b.norm()):.2e}")}))
            sys.stdout.flush()
    if args.memory:
        del vae
        for name in ("fp32", "bf16"):
            peaks = []
            for who in ("diffusers", "megaslide"):
                command = [sys.executable, os.path.abspath(__file__), args.library, "--role", who, "--dtype", name,
                           "--folder", folder, "--threads", str(args.threads), "--size"] + [str(n) for n in args.size]
                peaks.append(int(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split()[-1]))
            print(json.dumps({"dtype": name, "what": "peak memory", "diffusers_gb": round(peaks[0] / 1e9, 2),
                              "megaslide_gb": round(peaks[1] / 1e9, 2), "share": round(peaks[1] / peaks[0], 2)}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_vae_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--size", type=int, nargs=3, default=[9, 128, 128], metavar=("FRAMES", "HEIGHT", "WIDTH"))
    parser.add_argument("--only", choices=["fp32", "bf16"], help="time one type alone")
    parser.add_argument("--no-memory", dest="memory", action="store_false", help="times alone")
    parser.add_argument("--role", choices=["megaslide", "diffusers"], help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="fp32", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.role:
        return memory_of_ours(args) if args.role == "megaslide" else memory_of_diffusers(args)
    with tempfile.TemporaryDirectory(prefix="megaslide-peer-") as folder:
        compare(args, folder)


if __name__ == "__main__":
    main()
