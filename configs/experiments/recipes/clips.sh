# shellcheck shell=bash
# Sourced by recipes that train: the clips of structured motion, from make-motion-clips, and their caches.
# motion_cache NAME COUNT SEED FRAMES MODEL: $WORK/NAME/clips (made once) the cache $WORK/NAME/cache-FRAMES and what
# was encoded as $WORK/NAME/pictures-FRAMES.
motion_cache() {
  local folder=$WORK/$1
  if [[ ! -e $folder/made-$4 ]]; then
    [[ -d $folder/clips ]] || run make-motion-clips -q -o "$folder" --count "$2" --seed "$3" --num-frames "$MOTION_FRAMES" --size 64x64 --sprites 3 \
      --speed-from 0.5 --speed-to 4 --grain 8 --saturation 0.6 --token 4x8x8 >/dev/null
    run encode-clips -q "$folder/clips" -o "$folder/cache-$4" --model "$5" --num-frames "$4" --size 64x64 --threads 1 \
      --pictures "$folder/pictures-$4" >/dev/null
    touch "$folder/made-$4"
  fi
}
