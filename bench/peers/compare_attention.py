#!/usr/bin/env python3
"""Dense attention and DSA beside PyTorch's scaled_dot_product_attention, and beside DSA written with grid_sample.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_attention_entry
    bench/peers/compare_attention.py build/release/lib/libbench_attention_entry.so [--threads 2] [--only dense|dsa|naive|check]

12 heads of 128 in bf16. Dense attention at --dense-grid, interleaved. DSA (kernel 3x7x7, R = (1,2,2), 4 groups) at
--dsa-grid, tile and gather kernel, against one run of dense attention at the same grid. The naive DSA interpolates K and
V with grid_sample in fp32, in chunks of queries, at --naive-grid, where its memory is what the process grows by.
`check` compares all of it with fp64 on a small grid. JSON lines: median seconds, the best of them in brackets. Ratios are
of seconds on the clock and, as cpu_…, of processor seconds, which hold when other programs run as well.
Needs torch.
"""
import argparse
import ctypes
import json
import os
import resource
import statistics
import time

HEADS, DIM, GROUPS, KERNEL, REACH = 12, 128, 4, (3, 7, 7), (1.0, 2.0, 2.0)
MODES = {"full": 0, "slice": 1}


def grid_of(text):
    return tuple(int(x) for x in text.split("x"))


def load(a):
    a.library = ctypes.CDLL(os.path.abspath(a.library))
    a.library.ms_runner.restype = ctypes.c_void_p
    a.runner = ctypes.c_void_p(a.library.ms_runner(a.threads))


def address(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


class Ours:
    """q, k, v: (N, heads, d) bf16; results fp32."""

    def __init__(self, torch, a, q, k, v, dout, heads=HEADS, offsets=None, grid=None, mode="full", groups=GROUPS):
        self.library, self.runner, self.inputs, self.dout = a.library, a.runner, (q, k, v), dout
        tokens, _, dim = q.shape
        floats = lambda *shape: torch.zeros(shape)
        self.out, self.lse = floats(*q.shape), floats(tokens, heads)
        self.dq, self.dk, self.dv = (floats(*q.shape) for _ in range(3))
        self.offsets = offsets
        self.scale = ctypes.c_float(dim ** -0.5)
        if offsets is None:
            self.tail = (ctypes.c_int64(tokens), heads, dim, self.scale, 1)
        else:
            self.doffsets = torch.zeros_like(offsets)
            dims = (ctypes.c_int * 10)(*grid, heads, dim, groups, *KERNEL, MODES[mode])
            self.tail = (dims, (ctypes.c_float * 3)(*REACH), self.scale, 1)

    def forward(self):
        tensors = map(address, (self.out, self.lse, *self.inputs))
        if self.offsets is None:
            self.library.ms_dense_forward(self.runner, *tensors, *self.tail)
        else:
            self.library.ms_dsa_forward(self.runner, *tensors, address(self.offsets), *self.tail)

    def backward(self):
        gradients = [self.dq, self.dk, self.dv]
        rest = [self.out, self.lse, self.dout]
        if self.offsets is None:
            self.library.ms_dense_backward(self.runner, *map(address, gradients + [*self.inputs] + rest), *self.tail)
        else:
            tensors = gradients + [self.doffsets, *self.inputs, self.offsets] + rest
            self.library.ms_dsa_backward(self.runner, *map(address, tensors), *self.tail)


def timed(run):
    """Seconds on the clock and of the processors."""
    begin, cpu = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - begin, time.process_time() - cpu


def medians(times):
    return tuple(statistics.median(x) for x in zip(*times))


def figures(times):
    clock = [x[0] for x in times]
    return f"{statistics.median(clock):.3f} ({min(clock):.3f})"


def ratios(name, slow, fast, digits=2):
    """Of sums of medians(): one by the clock, one by the processors."""
    total = lambda parts: [sum(x) for x in zip(*parts)]
    clock, cpu = (round(x / y, digits) for x, y in zip(total(slow), total(fast)))
    return {name: clock, "cpu_" + name: cpu}


class Dense:
    """scaled_dot_product_attention on (1, heads, N, d)."""

    def __init__(self, torch, q, k, v, dout):
        heads_first = lambda x: x.transpose(0, 1).unsqueeze(0).contiguous()
        self.q, self.k, self.v = (heads_first(x).requires_grad_() for x in (q, k, v))
        self.dout = heads_first(dout).to(q.dtype)
        self.attend = torch.nn.functional.scaled_dot_product_attention

    def forward(self):
        self.out = self.attend(self.q, self.k, self.v)

    def backward(self):
        self.q.grad = self.k.grad = self.v.grad = None
        self.out.backward(self.dout)
        self.out = None


def inputs(torch, grid, heads=HEADS, dim=DIM):
    torch.manual_seed(0)
    tokens = grid[0] * grid[1] * grid[2]
    q, k, v = (torch.randn(tokens, heads, dim).to(torch.bfloat16) for _ in range(3))
    return q, k, v, torch.randn(tokens, heads, dim)


def raw_offsets(torch, grid, mode, groups=GROUPS):
    tokens = grid[0] * grid[1] * grid[2]
    shape = (groups, KERNEL[0] * KERNEL[1] * KERNEL[2], 3) if mode == "full" else (groups, KERNEL[0], 2)
    return torch.randn(tokens, *shape) * 1.5


def measure_dense(torch, a):
    tensors = inputs(torch, grid_of(a.dense_grid))
    runs = {"torch": Dense(torch, *tensors), "megaslide": Ours(torch, a, *tensors)}
    seconds = {(name, part): [] for name in runs for part in ("forward", "backward")}
    for turn in range(a.rounds + 1):
        for name, run in runs.items():
            for part in ("forward", "backward"):
                s = timed(getattr(run, part))
                if turn:  # the first turn touches the pages
                    seconds[name, part].append(s)
    of = {key: medians(times) for key, times in seconds.items()}
    parts = lambda name: [of[name, "forward"], of[name, "backward"]]
    print(json.dumps({"op": "dense", "tokens": tensors[0].shape[0], "threads": a.threads,
                      **{f"{n}_{p}_s": figures(t) for (n, p), t in seconds.items()},
                      **ratios("forward_ratio", parts("torch")[:1], parts("megaslide")[:1]),
                      **ratios("forward_backward_ratio", parts("torch"), parts("megaslide"))}), flush=True)


def measure_dsa(torch, a):
    grid = grid_of(a.dsa_grid)
    tensors = inputs(torch, grid)
    dense = Dense(torch, *tensors)
    sdpa = [timed(dense.forward)] + ([] if a.forward_only else [timed(dense.backward)])
    del dense
    print(json.dumps({"op": "torch sdpa", "tokens": tensors[0].shape[0], "clock_s": [round(x[0], 2) for x in sdpa],
                      "cpu_s": [round(x[1], 2) for x in sdpa]}), flush=True)
    for mode in MODES:
        ours = Ours(torch, a, *tensors, offsets=raw_offsets(torch, grid, mode), grid=grid, mode=mode)
        of = {}
        for which, kernel in ((2, "tile"), (1, "gather")):
            a.library.ms_dsa_kernel(which)
            times = {"forward": [], "backward": []}
            for turn in range(a.rounds + 1):
                for part in times:
                    s = timed(getattr(ours, part))
                    if turn:  # the first turn touches the pages
                        times[part].append(s)
            of[kernel] = [medians(t) for t in times.values()]
            row = {"op": f"dsa {mode}", "kernel": kernel, "tokens": tensors[0].shape[0], "threads": a.threads,
                   **{f"{part}_s": figures(t) for part, t in times.items()},
                   **ratios("sdpa_forward_ratio", sdpa[:1], of[kernel][:1], 1)}
            if not a.forward_only:
                row.update(ratios("sdpa_forward_backward_ratio", sdpa, of[kernel], 1))
            print(json.dumps(row), flush=True)
        print(json.dumps({"op": f"dsa {mode}", **ratios("gather_over_tile_forward", of["gather"][:1], of["tile"][:1]),
                          **ratios("gather_over_tile_backward", of["gather"][1:], of["tile"][1:])}), flush=True)
    a.library.ms_dsa_kernel(0)


def naive_chunk(torch, q, volumes, offsets, grid, mode, first):
    """Queries first … of (n, heads, d); volumes: K, V as (heads, d, T, H, W); offsets of these queries."""
    n, heads, dim = q.shape
    index = torch.arange(first, first + n)
    position = torch.stack((index // (grid[1] * grid[2]), index // grid[2] % grid[1], index % grid[2]), 1)
    axes = []
    for axis in range(3):
        k = min(KERNEL[axis], grid[axis])
        start = (position[:, axis] - k // 2).clamp(0, grid[axis] - k)
        axes.append(start[:, None] + torch.arange(k))
    slots = [x.shape[1] for x in axes]
    base = torch.stack([axes[0][:, :, None, None].expand(n, *slots), axes[1][:, None, :, None].expand(n, *slots),
                        axes[2][:, None, None, :].expand(n, *slots)], -1).to(q.dtype)
    reach = torch.tensor(REACH, dtype=q.dtype)
    groups = offsets.shape[1]
    if mode == "full":
        move = offsets.reshape(n, groups, *KERNEL, 3)[:, :, :slots[0], :slots[1], :slots[2]]
        move = reach * torch.tanh(move / reach)
    else:
        move = reach[1:] * torch.tanh(offsets / reach[1:])
        move = torch.nn.functional.pad(move, (1, 0))[:, :, :slots[0], None, None, :]
    sizes = torch.tensor([max(x - 1, 1) for x in grid], dtype=q.dtype)
    where = (base[:, None] + move) / sizes * 2 - 1
    where = where.flip(-1).reshape(n, groups, -1, 3).transpose(0, 1)  # (x, y, z), by group
    where = where.repeat_interleave(heads // groups, 0).reshape(heads, n, -1, 1, 3)
    sample = lambda x: torch.nn.functional.grid_sample(x, where, mode="bilinear", padding_mode="border",
                                                       align_corners=True).squeeze(-1)
    keys, values = (sample(x) for x in volumes)  # (heads, d, n, slots)
    scores = torch.einsum("nhd,hdnj->hnj", q, keys) * dim ** -0.5
    return torch.einsum("hnj,hdnj->nhd", scores.softmax(-1), values)


class Naive:
    def __init__(self, torch, q, k, v, dout, offsets, grid, mode, chunk):
        self.torch, self.grid, self.mode, self.chunk, self.dout = torch, grid, mode, chunk, dout
        volume = lambda x: x.permute(1, 2, 0).reshape(x.shape[1], x.shape[2], *grid).contiguous()
        self.q, self.offsets = q.requires_grad_(), offsets.requires_grad_()
        self.volumes = [volume(x).requires_grad_() for x in (k, v)]

    def run(self, backward):
        outs = []
        with self.torch.set_grad_enabled(backward):
            for i in range(0, self.q.shape[0], self.chunk):
                part = slice(i, i + self.chunk)
                out = naive_chunk(self.torch, self.q[part], self.volumes, self.offsets[part], self.grid, self.mode, i)
                if backward:
                    out.backward(self.dout[part].to(out.dtype))
                outs.append(out.detach())
        self.out = self.torch.cat(outs)


def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_naive(torch, a):
    grid = grid_of(a.naive_grid)
    q, k, v, dout = inputs(torch, grid)
    for mode in MODES:
        offsets = raw_offsets(torch, grid, mode)
        ours = Ours(torch, a, q, k, v, dout, offsets=offsets, grid=grid, mode=mode)
        before = peak_mib()
        ours_s = [timed(ours.forward), timed(ours.backward)]
        ours_mib = peak_mib() - before
        naive = Naive(torch, q.float(), k.float(), v.float(), dout, offsets.clone(), grid, mode, a.chunk)
        before = peak_mib()
        forward = timed(lambda: naive.run(False))
        both = timed(lambda: naive.run(True))
        print(json.dumps({"op": f"dsa {mode}", "tokens": q.shape[0], "threads": a.threads, "chunk": a.chunk,
                          "naive_forward_s": round(forward[0], 2), "naive_forward_backward_s": round(both[0], 2),
                          "naive_growth_mib": round(peak_mib() - before), "megaslide_forward_s": round(ours_s[0][0], 3),
                          "megaslide_backward_s": round(ours_s[1][0], 3), "megaslide_growth_mib": round(ours_mib),
                          **ratios("forward_ratio", [forward], ours_s[:1], 1),
                          **ratios("forward_backward_ratio", [both], ours_s, 1)}), flush=True)


def check(torch, a):
    error = lambda x, y: round(((x.double() - y).norm() / y.norm()).item(), 5)
    grid = (3, 11, 13)
    q, k, v, dout = inputs(torch, grid, heads=4, dim=64)
    exact = Dense(torch, q.double(), k.double(), v.double(), dout)
    exact.forward()
    out, gradients = exact.out.detach(), []
    exact.backward()
    gradients = [x.grad[0].transpose(0, 1) for x in (exact.q, exact.k, exact.v)]
    ours = Ours(torch, a, q, k, v, dout, heads=4)
    ours.forward()
    ours.backward()
    print(json.dumps({"op": "dense", "out": error(ours.out, out[0].transpose(0, 1)),
                      **{n: error(x, y) for n, x, y in zip(("dq", "dk", "dv"), (ours.dq, ours.dk, ours.dv), gradients)}}))
    tokens_last = lambda x: x.reshape(x.shape[0], x.shape[1], -1).permute(2, 0, 1)
    for mode in MODES:
        offsets = raw_offsets(torch, grid, mode, groups=2)
        naive = Naive(torch, q.double(), k.double(), v.double(), dout, offsets.double(), grid, mode, 64)
        naive.run(True)
        for which, kernel in ((2, "tile"), (1, "gather")):
            a.library.ms_dsa_kernel(which)
            ours = Ours(torch, a, q, k, v, dout, heads=4, offsets=offsets, grid=grid, mode=mode, groups=2)
            ours.forward()
            ours.backward()
            print(json.dumps({"op": f"dsa {mode}", "kernel": kernel, "out": error(ours.out, naive.out),
                              "dq": error(ours.dq, naive.q.grad), "dk": error(ours.dk, tokens_last(naive.volumes[0].grad)),
                              "dv": error(ours.dv, tokens_last(naive.volumes[1].grad)),
                              "doffsets": error(ours.doffsets, naive.offsets.grad)}), flush=True)
    a.library.ms_dsa_kernel(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_attention_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dense-grid", default="4x30x52")
    parser.add_argument("--dsa-grid", default="21x30x52")
    parser.add_argument("--naive-grid", default="2x30x52")
    parser.add_argument("--chunk", type=int, default=128, help="queries at a time of the naive DSA")
    parser.add_argument("--forward-only", action="store_true", help="no backward pass of dense attention at --dsa-grid")
    parser.add_argument("--only", choices=("check", "dense", "dsa", "naive"))
    a = parser.parse_args()
    import torch
    torch.set_num_threads(a.threads)
    load(a)
    for name, run in (("check", check), ("dense", measure_dense), ("dsa", measure_dsa), ("naive", measure_naive)):
        if a.only in (None, name):
            run(torch, a)


if __name__ == "__main__":
    main()
