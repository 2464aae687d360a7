#!/usr/bin/env python3
"""One block of the UMT5 encoder at XXL width in bf16: MegaSlide beside transformers (PyTorch), interleaved.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_umt5_entry
    bench/peers/compare_umt5.py build/release/lib/libbench_umt5_entry.so [--threads 2] [--tokens 512]

Wants torch and transformers in this Python. Both start from the same weights and rows; the outputs are compared first.
"""
import argparse
import ctypes
import json
import os
import statistics
import sys

from interleaved import interleaved_seconds

NAMES = ["layer.0.layer_norm", "layer.1.layer_norm", "layer.0.SelfAttention.relative_attention_bias", "layer.0.SelfAttention.q",
         "layer.0.SelfAttention.k", "layer.0.SelfAttention.v", "layer.0.SelfAttention.o", "layer.1.DenseReluDense.wi_0",
         "layer.1.DenseReluDense.wi_1", "layer.1.DenseReluDense.wo"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_umt5_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--attention", default="sdpa", choices=["eager", "sdpa"], help="transformers' implementation")
    args = parser.parse_args()

    import torch
    import transformers
    from transformers import UMT5Config
    from transformers.models.umt5.modeling_umt5 import UMT5Block

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    width, heads, head_dim, ffn = 4096, 64, 64, 10240
    config = UMT5Config(d_model=width, d_kv=head_dim, d_ff=ffn, num_layers=1, num_heads=heads, feed_forward_proj="gated-gelu",
                        is_encoder_decoder=False, use_cache=False, dropout_rate=0.0)
    config._attn_implementation = args.attention
    config.is_decoder = False
    block = UMT5Block(config, layer_idx=0).eval()
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if "layer_norm" in name:
                parameter.fill_(1)
            elif "bias" in name:
                parameter.normal_()
            else:
                # Scores of q and k, which are not scaled, of a few units, as trained weights have them.
                scale = 0.15 if name.endswith((".q.weight", ".k.weight")) else 0.7
                parameter.normal_(std=scale / parameter.shape[1] ** 0.5 * (1.0 if scale > 0.5 else 2.0))
    block = block.to(torch.bfloat16)
    parameters = dict(block.named_parameters())
    x = torch.randn(1, args.tokens, width)
    x16 = x.to(torch.bfloat16)

    library = ctypes.CDLL(os.path.abspath(args.library))
    library.ms_umt5_block.restype = ctypes.c_void_p
    weights = (ctypes.c_void_p * len(NAMES))(*[parameters[n + ".weight"].data_ptr() for n in NAMES])
    sizes = [ctypes.c_int64(v) for v in (width, heads, head_dim, ffn)]
    ours = ctypes.c_void_p(library.ms_umt5_block(args.threads, *sizes, weights, ctypes.c_int64(args.tokens)))
    x32, y = x16.float().contiguous(), torch.empty(args.tokens, width)

    def megaslide():
        library.ms_umt5_forward(ours, ctypes.c_void_p(x32.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_int64(args.tokens))

    def megaslide_packing():
        library.ms_umt5_pack(ours)
        megaslide()

    def peer():
        with torch.inference_mode():
            out = block(x16)
        return out[0] if isinstance(out, tuple) else out

    megaslide()
    reference = UMT5Block(config, layer_idx=0).eval()
    reference.load_state_dict({k: v.float() for k, v in block.state_dict().items()})
    with torch.inference_mode():
        exact = reference(x32)
    exact = (exact[0] if isinstance(exact, tuple) else exact).reshape(args.tokens, width)
    theirs = peer().float().reshape(args.tokens, width)
    errors = {"megaslide": ((y - exact).norm() / exact.norm()).item(), "transformers": ((theirs - exact).norm() / exact.norm()).item()}
    assert errors["megaslide"] <= errors["transformers"], errors
    del reference

    programs = {"transformers": peer, "megaslide": megaslide, "megaslide with packing": megaslide_packing}
    seconds = interleaved_seconds(programs, args.rounds)
    print(f"torch {torch.__version__}, transformers {transformers.__version__} ({args.attention}), {args.threads} threads, "
          f"{args.tokens} tokens, {args.rounds} interleaved rounds; relative error to fp32: {errors}", file=sys.stderr)
    for name, times in seconds.items():
        ratios = [a / b for a, b in zip(seconds["transformers"], times)]
        print(json.dumps({"program": name, "ms": round(statistics.median(times) * 1e3, 1), "best_ms": round(min(times) * 1e3, 1),
                          "ratio_to_transformers": round(statistics.median(ratios), 3)}))


if __name__ == "__main__":
    main()
