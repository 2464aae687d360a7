#!/usr/bin/env python3
"""Exports a model directory to diffusers, runs WanPipeline there, and compares with the programs' own results.

    bench/peers/compare_pipeline.py MODEL --bin build/release/bin [--steps 4] [--size 64x48] [--num-frames 9]

MODEL is a model directory with VAE, text encoder and tokenizer (shard-weights PIPELINE -o MODEL), small enough for fp32
in memory. Needs torch, diffusers and transformers. Prints the relative L2 distance of text rows, final latents and
frames, and fails beyond fp32 noise: 1e-4 for the text rows and latents, two levels of 8 bits for the pictures.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import torch
from diffusers import UniPCMultistepScheduler, WanPipeline
from safetensors.torch import load_file, save_file

PROMPT = "A small red fox runs across the snowy field."
NEGATIVE = "blurred, static"


def distance(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", default="64x48")
    parser.add_argument("--num-frames", type=int, default=9)
    parser.add_argument("--flow-shift", type=float, default=3.0)
    parser.add_argument("--guidance-scale", type=float, default=5.0)
    args = parser.parse_args()
    width, height = map(int, args.size.split("x"))

    with tempfile.TemporaryDirectory(prefix="megaslide-peer-") as folder:
        def program(name, *arguments):
            command = [os.path.join(args.bin, name), *map(str, arguments)]
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

        exported, text_file = os.path.join(folder, "diffusers"), os.path.join(folder, "text.safetensors")
        program("shard-weights", "--export", "diffusers", args.model, "--dtype", "fp32", "-o", exported)
        pipe = WanPipeline.from_pretrained(exported, torch_dtype=torch.float32)
        pipe.set_progress_bar_config(disable=True)
        pipe.scheduler = UniPCMultistepScheduler.from_config(pipe.scheduler.config, flow_shift=args.flow_shift)

        # Our ids through their encoder: their tokenizer class rewrites this kind of model on loading.
        texts = json.loads(program("encode-clips", "--text", PROMPT, "--text", NEGATIVE, "--model", args.model, "--json", "--compute-dtype", "fp32",
                                   "-o", text_file))["texts"]
        ours, theirs = load_file(text_file), []
        for i, text in enumerate(texts):
            with torch.no_grad():
                rows = pipe.text_encoder(torch.tensor([text["ids"]])).last_hidden_state[0]
            theirs.append(torch.zeros_like(ours[f"embeds.{i}"]))
            theirs[-1][: len(rows)] = rows
        text_distance = max(distance(ours[f"embeds.{i}"], theirs[i]) for i in range(2))

        config = pipe.transformer.config
        shape = (1, config.in_channels, (args.num_frames - 1) // 4 + 1, height // pipe.vae_scale_factor_spatial,
                 width // pipe.vae_scale_factor_spatial)
        latents = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        inputs, result = os.path.join(folder, "in.safetensors"), os.path.join(folder, "out.safetensors")
        save_file({"latents_init": latents, "prompt_embeds": theirs[0][None], "negative_prompt_embeds": theirs[1][None]}, inputs)
        program("sample-video", args.model, "--init-latents", inputs, "--text-embeds", inputs, "--steps", args.steps,
                "--guidance-scale", args.guidance_scale, "--flow-shift", args.flow_shift, "--compute-dtype", "fp32",
                "--latents-out", result, "-o", os.path.join(folder, "video.safetensors"))

        common = dict(prompt_embeds=theirs[0][None], negative_prompt_embeds=theirs[1][None], height=height, width=width,
                      num_frames=args.num_frames, num_inference_steps=args.steps, guidance_scale=args.guidance_scale)
        with torch.no_grad():
            their_latents = pipe(latents=latents.clone(), output_type="latent", **common).frames
            their_video = pipe(latents=latents.clone(), output_type="pt", **common).frames
        latent_distance = distance(load_file(result)["latents"], their_latents)
        our_video = load_file(os.path.join(folder, "video.safetensors"))["video"]
        if our_video.dim() == 4:
            our_video = our_video[None]
        levels = ((our_video / 2 + 0.5).permute(0, 2, 1, 3, 4) - their_video).abs().max().item() * 255

    print(f"text rows        {text_distance:.2e}")
    print(f"final latents    {latent_distance:.2e}")
    print(f"frames           {levels:.3f} levels of 255 at most")
    good = text_distance < 1e-4 and latent_distance < 1e-4 and levels < 2
    print("equal up to fp32 noise" if good else "DIFFERENT")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
