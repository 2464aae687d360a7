#!/usr/bin/env python3
"""A stack of Wan blocks, ours beside diffusers' WanTransformerBlock on PyTorch, interleaved in one run.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_dit_entry
    bench/peers/compare_dit.py build/release/lib/libbench_dit_entry.so [--threads 2] [--layers 2]

Prints, as JSON lines: the distance of both from an fp32 run of diffusers (outputs and gradients, small blocks), then
tokens/s of inference and of forward + backward with recompute at the width of Wan 1.3B, and the ratio. Needs torch and
diffusers.
"""
import argparse
import ctypes
import json
import os
import statistics
import sys

from interleaved import interleaved_seconds


def float_pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


class Ours:
    def __init__(self, library, blocks, width, heads, ffn, grid, text, bf16, threads):
        self.library = library
        library.ms_stack.restype = ctypes.c_void_p
        library.ms_stack_gradient.restype = ctypes.c_void_p
        self.stack = ctypes.c_void_p(library.ms_stack(len(blocks), width, heads, ffn, *grid, text, int(bf16), threads))
        self.kept = []
        import torch
        dtype = torch.bfloat16 if bf16 else torch.float32
        for layer, block in enumerate(blocks):
            for name, parameter in block.named_parameters():
                values = parameter.detach().to(dtype).contiguous()
                self.kept.append(values)
                library.ms_stack_set(self.stack, layer, name.encode(), float_pointer(values))
        self.pack(True)

    def pack(self, training):
        self.library.ms_stack_pack(self.stack, int(training))

    def infer(self, x, context, modulation, y):
        self.library.ms_stack_infer(self.stack, *map(float_pointer, (x, context, modulation, y)))

    def train(self, x, context, modulation, dy, y, dx):
        self.library.ms_stack_train(self.stack, *map(float_pointer, (x, context, modulation, dy, y, dx)))

    def gradient(self, layer, name, like):
        import torch
        address = self.library.ms_stack_gradient(self.stack, layer, name.encode())
        array = (ctypes.c_float * like.numel()).from_address(address)
        return torch.frombuffer(array, dtype=torch.float32).clone().reshape(like.shape)


def make(torch, layers, width, heads, ffn, grid, text):
    from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed, WanTransformerBlock
    torch.manual_seed(0)
    blocks = torch.nn.ModuleList(
        [WanTransformerBlock(width, ffn, heads, qk_norm="rms_norm_across_heads", cross_attn_norm=True, eps=1e-6)
         for _ in range(layers)])
    tokens = grid[0] * grid[1] * grid[2]
    x = torch.randn(1, tokens, width)
    context, modulation = torch.randn(1, text, width), torch.randn(1, 6, width) * 0.2
    dy = torch.randn(1, tokens, width) / tokens
    # Its input is (B, C, T, h, w) of latents with patches of 1×2×2.
    rope = WanRotaryPosEmbed(width // heads, (1, 2, 2), 1024)(torch.zeros(1, 16, grid[0], 2 * grid[1], 2 * grid[2]))
    return blocks, x, context, modulation, dy, rope


def run_torch(torch, blocks, x, context, modulation, rope, dy=None):
    """Forward, or with dy forward and backward where each block is recomputed."""
    if dy is None:
        with torch.no_grad():
            for block in blocks:
                x = block(x, context, modulation, rope)
            return x
    from torch.utils.checkpoint import checkpoint
    x = x.detach().requires_grad_()
    y = x
    for block in blocks:
        y = checkpoint(block, y, context, modulation, rope, use_reentrant=False)
    y.backward(dy)
    return y, x.grad


def check(torch, library, threads):
    """Both in bf16 against diffusers in fp32; ours in fp32 too."""
    width, heads, ffn, grid, text = 256, 2, 768, (3, 6, 8), 40
    blocks, x, context, modulation, dy, rope = make(torch, 2, width, heads, ffn, grid, text)
    blocks = blocks.to(torch.bfloat16).float()
    y32, dx32 = run_torch(torch, blocks, x, context, modulation, rope, dy)
    grads32 = {(i, n): p.grad.clone() for i, b in enumerate(blocks) for n, p in b.named_parameters()}

    def distance(a, b):
        return ((a.float() - b).norm() / b.norm()).item()

    def whole(get):
        error = sum((get(k).float() - g).square().sum().item() for k, g in grads32.items())
        return (error / sum(g.square().sum().item() for g in grads32.values())) ** 0.5

    for bf16 in (False, True):
        ours = Ours(library, blocks, width, heads, ffn, grid, text, bf16, threads)
        y, dx = torch.empty_like(x), torch.empty_like(x)
        ours.train(x, context, modulation, dy, y, dx)
        print(json.dumps({"check": "megaslide " + ("bf16" if bf16 else "fp32"), "out": distance(y, y32),
                          "dx": distance(dx, dx32),
                          "gradients": whole(lambda k: ours.gradient(*k, grads32[k]))}), flush=True)
    narrow = blocks.to(torch.bfloat16)
    for block in narrow:
        block.zero_grad()
        block.scale_shift_table.data = block.scale_shift_table.data.float()
    y, dx = run_torch(torch, narrow, x.bfloat16(), context.bfloat16(), modulation, rope, dy.bfloat16())
    named = {(i, n): p.grad for i, b in enumerate(narrow) for n, p in b.named_parameters()}
    print(json.dumps({"check": "diffusers bf16", "out": distance(y, y32), "dx": distance(dx, dx32),
                      "gradients": whole(lambda k: named[k])}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_dit_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-check", action="store_true")
    args = parser.parse_args()
    import torch
    torch.set_num_threads(args.threads)
    library = ctypes.CDLL(os.path.abspath(args.library))
    if not args.no_check:
        check(torch, library, args.threads)
    width, heads, ffn, grid, text = 1536, 12, 8960, (1, 30, 52), 512
    tokens = grid[0] * grid[1] * grid[2]
    blocks, x, context, modulation, dy, rope = make(torch, args.layers, width, heads, ffn, grid, text)
    ours = Ours(library, blocks, width, heads, ffn, grid, text, True, args.threads)
    blocks = blocks.to(torch.bfloat16)
    for block in blocks:
        block.scale_shift_table.data = block.scale_shift_table.data.float()
    narrow = [t.bfloat16() for t in (x, context, dy)]
    y, dx = torch.empty_like(x), torch.empty_like(x)

    def torch_train():
        for p in blocks.parameters():
            p.grad = None
        run_torch(torch, blocks, narrow[0], narrow[1], modulation, rope, narrow[2])

    programs = {
        ("infer", "torch"): lambda: run_torch(torch, blocks, narrow[0], narrow[1], modulation, rope),
        ("infer", "megaslide"): lambda: ours.infer(x, context, modulation, y),
        ("train", "torch"): torch_train,
        ("train", "megaslide"): lambda: ours.train(x, context, modulation, dy, y, dx),
        # What streaming adds: weights are laid out at each of a step's two uploads.
        ("pack", "megaslide"): lambda: (ours.pack(False), ours.pack(True)),
    }
    seconds = interleaved_seconds(programs, args.rounds)
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    print(f"{cpu}; torch {torch.__version__}, {args.threads} threads, {args.layers} layers, {tokens} tokens, "
          f"{args.rounds} interleaved rounds", file=sys.stderr)
    for what in ("infer", "train"):
        theirs, mine = seconds[what, "torch"], seconds[what, "megaslide"]
        print(json.dumps({"what": what, "torch_tokens_per_s": round(tokens / statistics.median(theirs)),
                          "megaslide_tokens_per_s": round(tokens / statistics.median(mine)),
                          "best": [round(tokens / min(theirs)), round(tokens / min(mine))],
                          "ratio": round(statistics.median([a / b for a, b in zip(theirs, mine)]), 2)}), flush=True)
    print(json.dumps({"what": "pack, twice a step", "seconds": round(statistics.median(seconds["pack", "megaslide"]), 4)}))


if __name__ == "__main__":
    main()
