#!/usr/bin/env bash
# PNG of the plots and of the whole page, where there is something that draws them.
set -euo pipefail
out=$1
if command -v rsvg-convert >/dev/null; then
  for svg in "$out"/plots/*.svg; do [[ ! -e $svg ]] || rsvg-convert --zoom 1.5 "$svg" -o "${svg%.svg}.png"; done
else
  echo "no rsvg-convert here: plots are SVG alone" >&2
fi
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [[ -n $browser ]]; then
  # Headless browsers take a window, not a page: one as tall as the page needs to be found first.
  profile=$(mktemp -d)
  trap 'rm -rf "$profile"' EXIT
  quiet=(--headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile")
  probe=$profile/probe.html
  { cat "$out/report.html"; echo '<script>document.title=document.documentElement.scrollHeight</script>'; } >"$probe"
  height=$(timeout 120 "$browser" "${quiet[@]}" --window-size=1280,1000 --dump-dom "file://$probe" 2>/dev/null | sed -n 's/.*<title>\([0-9]*\)<\/title>.*/\1/p' | head -1) || height=
  timeout 120 "$browser" "${quiet[@]}" --window-size="1280,${height:-4000}" --screenshot="$out/report.png" "file://$(cd "$out" && pwd)/report.html" 2>/dev/null ||
    echo "$browser drew no picture: the report is $out/report.html alone" >&2
else
  echo "no chromium here: the report is $out/report.html alone" >&2
fi
echo "$out/report.html" >&2
