#!/usr/bin/env bash
# THIRD-PARTY.md lists what is linked: every library that a program or the video module asks the loader for, every package
# that cmake/ looks for, and nothing else. Usage: licences.sh SOURCE-DIR BUILD-DIR
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
source_dir=$1 build=$2
list=$source_dir/THIRD-PARTY.md

# "libfmt.so.9" and "ld-linux-x86-64.so.2" as libfmt and ld-linux-x86-64.
needed=$(for file in shard-weights encode-clips plan-memory finetune sample-video bench-dsa eval-vbench ../lib/megaslide_video.so; do
  readelf -d "$build/bin/$file" || echo "no $file" >&2
done | sed -n 's/.*(NEEDED).*\[\(.*\)\.so.*\]$/\1/p' | grep -vE '^lib(asan|ubsan|tsan)$' | LC_ALL=C sort -u)
(($(wc -l <<<"$needed") > 12)) || fail "only these libraries were found: $needed"
rows=$(awk -F ' *\\| *' '/^## /{exit} /^\| / && $2 != "library" {print $3}' "$list")
listed=$(tr ',' '\n' <<<"$rows" | sed 's/^ *//' | grep -E '^(lib|ld-)[^ ]*$' | LC_ALL=C sort -u)
absent=$(LC_ALL=C comm -23 <(sed 's/^ld-linux.*/ld-linux-x86-64/' <<<"$needed" | LC_ALL=C sort -u) - <<<"$listed")
[[ -z $absent ]] || fail "$list does not tell the licence of: $absent"
# Which parts of the C and C++ run times are asked for by name is the compiler's business.
unused=$(LC_ALL=C comm -13 <(echo "$needed") - <<<"$listed" | grep -vE '^(libm|libc|libgcc_s|libgomp|libstdc\+\+|libcudart_static|ld-linux.*)$')
[[ -z $unused ]] || fail "$list names what nothing links: $unused"
checks=$((checks + 1))

# --version of a program names each library that it links, and none without a licence here.
names=$(awk -F ' *\\| *' '/^\| / {print tolower($2)}' "$list" | tr '_' '-')
for program in shard-weights encode-clips plan-memory finetune sample-video bench-dsa eval-vbench; do
  said=$("$build/bin/$program" --version | sed -n 's/^libraries: //p' | tr '[:upper:]' '[:lower:]')
  while read -r library file; do
    readelf -d "$build/bin/$program" | grep -q "\[$file\.so" || continue
    grep -qE "(^|, )$library [0-9]" <<<"$said" || fail "$program --version does not name $library, which it links: $said"
    checks=$((checks + 1))
  done < <(awk -F ' *\\| *' '/^## /{exit} /^\| / && $3 ~ /^lib/ && $2 !~ /^(GCC|GNU|CUDA|FFmpeg)/ {sub(/,.*/, "", $3); print tolower($2), $3}' "$list")
  while read -r library _; do
    grep -qxF -- "$library" <<<"$names" || fail "$list does not tell the licence of $library, which $program names"
    checks=$((checks + 1))
  done < <(tr ',' '\n' <<<"$said")
done

# What CMake looks for, by the names of the first column.
sought=$(sed -nE 's/^ *(find_package|pkg_check_modules)\(([A-Za-z0-9_-]+).*/\2/p' \
  "$source_dir"/cmake/*.cmake "$source_dir"/libcore/*/CMakeLists.txt "$source_dir"/kernels/*/CMakeLists.txt | sort -u)
(($(wc -l <<<"$sought") > 10)) || fail "only these packages were found: $sought"
for package in $sought; do
  name=$(tr '[:upper:]_' '[:lower:]-' <<<"$package")
  case $name in
    threads) name="gnu c library" ;;
    openmp) name="gcc's libraries" ;;
    pkgconfig) continue ;;
    hwy) name=highway ;;
    dnnl) name=onednn ;;
    av) name=ffmpeg ;;
    zip) name=libzip ;;
    png) name=libpng ;;
    uring) name=liburing ;;
  esac
  grep -qxF -- "$name" <<<"$names" || fail "$list does not tell the licence of $package"
  checks=$((checks + 1))
done

# Every row has all its columns.
run awk -F ' *\\| *' '/^## /{exit} /^\| / && NF != 8 {print; bad = 1} /^\| / {for (i = 2; i < NF; ++i) if ($i == "") {print; bad = 1}} END {exit bad}' "$list"
expect 0 out ''
finish
