#!/usr/bin/env bash
# sample-video and encode-clips with --device cuda, over the mock of the CUDA runtime: pictures and latents near those of
# --device cpu, everything given back, and an error with its remedy where the device is too small.
#   programs.sh BUILD
set -euo pipefail
build=$1
data=$(cd "$(dirname "$0")/../data" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
die() { echo "$*"; cat "$work/log"; exit 1; }
run() { # run PROGRAM ARGUMENT...
  MEGASLIDE_MOCK_CUDA_REPORT=$work/report.json "$build/tests/$1_mocked" "${@:2}" -q --progress never --threads 2 >"$work/log" 2>&1
}
nothing_left() { grep -q '"live":0' "$work/report.json" || die "$1: something is left on the device: $(cat "$work/report.json")"; }
# far FILE FILE: the largest difference of two files' last BYTES/4 fp32 values, which is where their tensors lie.
far() {
  paste <(tail -c "$3" "$1" | od -An -v -w4 -tf4) <(tail -c "$3" "$2" | od -An -v -w4 -tf4) |
    awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > m) m = d; if (d != d || NF != 2) m = 1e9 } END { print m + 0 }'
}
within() { awk -v got="$1" -v most="$2" 'BEGIN { exit !(got <= most) }' || die "$3: off by $1"; }

# A pipeline of tiny networks: one frame of 16x16, in fp32. A prediction is off by some 1e-6 on either device; guidance
# multiplies the difference of two by 5, and two steps and the decoder add to it.
for device in cpu cuda; do
  run sample_video "$data/pipeline/model" --prompt "a red fox" --device $device --compute-dtype fp32 --num-frames 1 --size 16x16 \
    --steps 2 -o "$work/$device.safetensors" --latents-out "$work/$device.latents.safetensors" || die "sample-video --device $device"
done
nothing_left sample-video
within "$(far "$work/cpu.safetensors" "$work/cuda.safetensors" $((3 * 16 * 16 * 4)))" 2e-5 "the pictures"

# The decoder alone, from the same latents: three times the noise of the tiny autoencoders, 6e-7, on either device.
for device in cpu cuda; do
  run sample_video "$data/pipeline/model" --decode "$work/cpu.latents.safetensors" --device $device --compute-dtype fp32 \
    -o "$work/decoded-$device.safetensors" || die "sample-video --decode --device $device"
done
nothing_left "sample-video --decode"
grep -q '"kernels":[1-9]' "$work/report.json" || die "the device decoded nothing"
within "$(far "$work/decoded-cpu.safetensors" "$work/decoded-cuda.safetensors" $((3 * 16 * 16 * 4)))" 4e-6 "decoded pictures"

# What was decoded as a clip of one frame.
mkdir "$work/clip"
run sample_video "$data/pipeline/model" --decode "$work/cpu.latents.safetensors" -o "$work/clip/frames" || die "frames"
echo "a red fox" >"$work/clip/frames.txt"
for device in cpu cuda; do
  run encode_clips "$work/clip" -o "$work/cache-$device" --model "$data/pipeline/model" --device $device || die "encode-clips --device $device"
done
nothing_left encode-clips
grep -q '"kernels":[1-9]' "$work/report.json" || die "the device encoded nothing"
name=$(basename "$(ls "$work"/cache-cpu/clips/*.safetensors)")
[ -f "$work/cache-cuda/clips/$name" ] || die "the latent of another device has another key"

# An arena of half of this: cuBLASLt's workspace of 96 MiB and less than the codec needs.
status=0
MEGASLIDE_MOCK_CUDA_DEVICES=$((2 * ((96 << 20) + 65536))) run sample_video "$data/pipeline/model" --decode "$work/cpu.latents.safetensors" --device cuda \
  -o "$work/none.safetensors" || status=$?
[ "$status" = 3 ] && grep -q "of the device's memory to decode" "$work/log" && grep -q 'remedy: use --vae-tiling' "$work/log" || die "too small a device: exit status $status"
nothing_left "too small a device"

# Room for the autoencoder (2.00 MB) but not for the transformer beside it: that leaves the device and comes back for the next video.
two() { # two FOLDER DEVICE-BYTES
  MEGASLIDE_MOCK_CUDA_DEVICES=$2 run sample_video "$data/pipeline/model" --prompt "a red fox" --prompt "a blue bird" --format png --device cuda \
    --num-frames 1 --size 16x16 --steps 1 -o "$work/$1" || die "two videos on a device of $2 bytes"
}
two room $((1 << 33))
two "no-room" $((2 * ((96 << 20) + (2000 << 10))))
diff -r "$work/room" "$work/no-room" >/dev/null || die "other pictures where the transformer left the device"
