#!/usr/bin/env python3
"""Pipelines saved by diffusers go through shard-weights and come back bit for bit.

    bench/peers/roundtrip_diffusers.py --bin build/release/bin [--folder KEEP]

Makes tiny random pipelines with save_pretrained (Wan 2.1 and TI2V-5B in F32, BF16 and sharded; Wan 2.2 A14B of two
transformers), then for each: import; export to diffusers, which from_pretrained must read with every parameter of every
part equal; export to wan and import of that, with torch.load-able .pth files in place of the VAE and the text encoder;
equal state hashes on all ways. Needs torch, diffusers, transformers and safetensors. Prints a line a check and fails when
one does.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # before the libraries are loaded

import diffusers
import torch
import transformers
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from safetensors.torch import load_file
from transformers import UMT5Config, UMT5EncoderModel

failures = 0


def check(holds, text):
    global failures
    failures += not holds
    print(("ok      " if holds else "FAILED  ") + text, flush=True)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout.strip()


def transformer(seed, channels, dtype):
    torch.manual_seed(seed)
    net = WanTransformer3DModel(num_attention_heads=2, attention_head_dim=12, in_channels=channels, out_channels=channels, text_dim=32,
                                freq_dim=256, ffn_dim=40, num_layers=2, rope_max_seq_len=1024)
    return net.to(dtype)


def parts(residual, dtype):
    torch.manual_seed(7)
    if residual:
        vae = AutoencoderKLWan(base_dim=4, decoder_base_dim=6, z_dim=48, dim_mult=[1, 2, 4, 4], num_res_blocks=2,
                               temperal_downsample=[False, True, True], is_residual=True, in_channels=12, out_channels=12, patch_size=2,
                               scale_factor_spatial=16, latents_mean=[0.0] * 48, latents_std=[1.0] * 48)
    else:
        vae = AutoencoderKLWan(base_dim=4, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, temperal_downsample=[False, True, True])
    config = UMT5Config(vocab_size=300, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2, feed_forward_proj="gated-gelu")
    return vae, UMT5EncoderModel(config).to(dtype)


def save_pipeline(folder, kind, dtype):
    vae, text_encoder = parts(kind == "ti2v", dtype)
    channels = 48 if kind == "ti2v" else 16
    second = transformer(2, channels, dtype) if kind == "a14b" else None
    pipe = WanPipeline(tokenizer=None, text_encoder=text_encoder, vae=vae, scheduler=UniPCMultistepScheduler(flow_shift=3.0, use_flow_sigmas=True,
                       prediction_type="flow_prediction"), transformer=transformer(1, channels, dtype), transformer_2=second,
                       boundary_ratio=0.875 if second else None, expand_timesteps=kind == "ti2v")
    pipe.save_pretrained(folder, max_shard_size="30KB")
    # A tokenizer's file is copied, whatever it holds.
    os.makedirs(f"{folder}/tokenizer")
    with open(f"{folder}/tokenizer/spiece.model", "wb") as f:
        f.write(b"\x0a\x05not a model")


def tensors(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            out.update(load_file(f"{folder}/{name}"))
    return out


def equal(a, b):
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)


def networks(kind):
    return ["transformer", "transformer_2"] if kind == "a14b" else ["transformer"]


def one(shard, folder, kind, dtype):
    name = f"{kind} {str(dtype)[6:]}"
    source, model, back, wan = (f"{folder}/{x}" for x in ("source", "model", "diffusers", "wan"))
    save_pipeline(source, kind, dtype)
    run(shard, source, "-o", model)
    state = run(shard, "--hash", model)
    run(shard, "--export", "diffusers", model, "-o", back, "--max-shard-size", "50kB")
    for part in networks(kind) + ["vae", "text_encoder"]:
        check(equal(tensors(f"{source}/{part}"), tensors(f"{back}/{part}")), f"{name}: {part}: tensors as they were saved")
    net = {n: WanTransformer3DModel.from_pretrained(back, subfolder=n) for n in networks(kind)}
    want = {n: WanTransformer3DModel.from_pretrained(source, subfolder=n) for n in networks(kind)}
    for n in net:
        check(equal(net[n].state_dict(), want[n].state_dict()), f"{name}: {n}: WanTransformer3DModel.from_pretrained")
    pipe = WanPipeline.from_pretrained(back, tokenizer=None, torch_dtype=dtype)
    check(pipe.config.boundary_ratio == (0.875 if kind == "a14b" else None), f"{name}: WanPipeline.from_pretrained")
    check(equal(pipe.vae.state_dict(), AutoencoderKLWan.from_pretrained(source, subfolder="vae", torch_dtype=dtype).state_dict()), f"{name}: its VAE")
    check(equal(pipe.text_encoder.state_dict(), UMT5EncoderModel.from_pretrained(source, subfolder="text_encoder", dtype=dtype).state_dict()),
          f"{name}: its text encoder")
    # To Wan's own layout, the parts as the archives that Wan publishes, and in again.
    run(shard, "--export", "wan", model, "-o", wan)
    for file in sorted(os.listdir(wan)):
        if file.endswith(".safetensors") and file[0] in "Wm":
            torch.save(load_file(f"{wan}/{file}"), f"{wan}/{file[:-12]}.pth")
            os.remove(f"{wan}/{file}")
    run(shard, wan, "-o", f"{folder}/again")
    check(run(shard, "--hash", f"{folder}/again") == state, f"{name}: state hash by way of the original layout")
    for part in ("vae", "text_encoder"):
        check(equal(tensors(f"{model}/{part}"), tensors(f"{folder}/again/{part}")), f"{name}: {part} by way of a .pth")
    AutoencoderKLWan.from_pretrained(f"{folder}/again", subfolder="vae")
    UMT5EncoderModel.from_pretrained(f"{folder}/again", subfolder="text_encoder")
    check(True, f"{name}: parts of a model directory load with the configs that were made")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--folder", help="keep what is made here")
    args = parser.parse_args()
    diffusers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    folder = args.folder or tempfile.mkdtemp()
    for kind in ("t2v", "ti2v", "a14b"):
        for dtype in (torch.float32, torch.bfloat16):
            one(f"{args.bin}/shard-weights", f"{folder}/{kind}-{str(dtype)[6:]}", kind, dtype)
    if not args.folder:
        shutil.rmtree(folder)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
