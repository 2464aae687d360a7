#!/usr/bin/env python3
"""Features of DINO ViT-B/16 and CLIP ViT-B/32 at full size with random weights: MegaSlide beside PyTorch (transformers), interleaved.

    cmake --preset release -DMEGASLIDE_BENCH=ON && cmake --build --preset release --target bench_vit_entry
    bench/peers/compare_vit.py build/release/lib/libbench_vit_entry.so [--threads 2] [--network dino clip] [--frames 1 8]

Wants torch, transformers and safetensors in this Python. Both read one file and the same pixels. Errors are of the features, relative to
the largest value of the same network in fp64. A ratio is the median over rounds of PyTorch's fp32 seconds by the program's. On a machine
that is busy, `--threads 1 --cpu-seconds` says most: seconds are then those that the process had a core.
"""
import argparse
import ctypes
import json
import os
import statistics
import sys
import tempfile
import time

from interleaved import interleaved_seconds


def build(name):
    import torch
    from transformers import CLIPConfig, CLIPModel, ViTConfig, ViTModel
    if name == "dino":
        model = ViTModel(ViTConfig(layer_norm_eps=1e-6), add_pooling_layer=False)
    else:
        model = CLIPModel(CLIPConfig())  # the widths of ViT-B/32 are its defaults
    # Outputs of a layer of the size of its inputs, as trained weights give, and norms that are not all alike.
    with torch.no_grad():
        for key, p in model.named_parameters():
            if p.dim() >= 2 and "embed" not in key:
                p.normal_(std=1.0 / p.shape[1] ** 0.5)
            elif key.endswith("bias"):
                p.normal_(std=0.1)
            elif "norm" in key or "layrnorm" in key:
                p.normal_(mean=1, std=0.1)
    return model.eval()


def features_of(name, model, pixels):
    import torch
    with torch.inference_mode():
        if name == "dino":
            return model(pixels).last_hidden_state[:, 0]
        return model.visual_projection(model.vision_model(pixels).pooler_output)


def published_names(name, state):
    """This release of transformers may hold modules under other names than the published files do."""
    def published(key):
        if name == "dino" and key.startswith("layers."):
            key = "encoder.layer." + key[len("layers."):]
            for ours, theirs in [("attention.q_proj", "attention.attention.query"), ("attention.k_proj", "attention.attention.key"),
                                 ("attention.v_proj", "attention.attention.value"), ("attention.o_proj", "attention.output.dense"),
                                 ("mlp.fc1", "intermediate.dense"), ("mlp.fc2", "output.dense")]:
                key = key.replace(ours, theirs)
        return key
    return {published(k): v.contiguous().clone() for k, v in state.items() if not k.endswith("position_ids")}


def compare(args, name, folder):
    import torch
    import safetensors.torch
    torch.manual_seed(0)
    model = build(name)
    path = os.path.join(folder, name + ".safetensors")
    safetensors.torch.save_file(published_names(name, model.state_dict()), path)
    library = ctypes.CDLL(os.path.abspath(args.library))
    library.ms_vit_open.restype = ctypes.c_void_p
    sessions = {dtype: ctypes.c_void_p(library.ms_vit_open(name.encode(), path.encode(), args.threads, int(dtype == "bf16"))) for dtype in ("fp32", "bf16")}
    assert all(sessions.values())
    narrow = build(name)
    narrow.load_state_dict(model.state_dict())
    narrow = narrow.to(torch.bfloat16)
    exact = build(name)
    exact.load_state_dict(model.state_dict())
    exact = exact.double()
    for frames in args.frames:
        pixels = torch.randn(frames, 3, 224, 224)
        reference = features_of(name, exact, pixels.double())
        out = torch.empty(reference.shape)

        def ours(dtype):
            library.ms_vit_features(sessions[dtype], ctypes.c_void_p(pixels.data_ptr()), ctypes.c_int64(frames), ctypes.c_int64(224), ctypes.c_int64(224),
                                    ctypes.c_void_p(out.data_ptr()))
            return out

        pixels16 = pixels.to(torch.bfloat16)
        programs = {"torch fp32": lambda: features_of(name, model, pixels), "megaslide fp32": lambda: ours("fp32"),
                    "torch bf16": lambda: features_of(name, narrow, pixels16), "megaslide bf16": lambda: ours("bf16")}
        errors = {key: ((run().double() - reference).abs().max() / reference.abs().max()).item() for key, run in programs.items()}
        seconds = interleaved_seconds(programs, args.rounds, time.process_time if args.cpu_seconds else time.perf_counter)
        for key, times in seconds.items():
            ratios = [a / b for a, b in zip(seconds["torch fp32"], times)]
            print(json.dumps({"network": name, "frames": frames, "program": key, "ms_per_frame": round(statistics.median(times) * 1e3 / frames, 1),
                              "best_ms_per_frame": round(min(times) * 1e3 / frames, 1), "ratio_to_torch_fp32": round(statistics.median(ratios), 2),
                              "feature_error": float(f"{errors[key]:.2g}")}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", help="libbench_vit_entry.so of a release build")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cpu-seconds", action="store_true", help="of all threads together, in place of those of a clock")
    parser.add_argument("--network", nargs="+", default=["dino", "clip"], choices=["dino", "clip"])
    parser.add_argument("--frames", nargs="+", type=int, default=[1, 8], help="pictures a call")
    args = parser.parse_args()
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {args.threads} threads, {args.rounds} interleaved rounds", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.network:
            compare(args, name, folder)


if __name__ == "__main__":
    main()
