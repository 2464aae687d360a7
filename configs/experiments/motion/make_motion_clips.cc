// make-motion-clips: clips whose motion is known, for experiments with attention that follows it.
#include <array>
#include <filesystem>

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "common/flags.h"
#include "common/run_tool.h"
#include "motion_scene.h"

using namespace megaslide;

int main(int argc, char** argv) {
  MotionSceneOptions o;
  std::string out;
  int64_t count = 64;
  std::array<int64_t, 3> token{0, 0, 0};
  const ToolInfo info{.name = "make-motion-clips",
                      .summary = "Draws clips of textured shapes on smooth paths, with where every pixel goes.",
                      .examples = {"make-motion-clips -o motion --count 256 --seed 1", "make-motion-clips -o fine --grain 1.5 --speed-from 2 --speed-to 8"},
                      .flags = kSeedFlag | kGracefulStop};
  return run_tool(argc, argv, info, [&](CLI::App& app) {
    app.add_option("-o,--output", out, "New folder for clips and truth")->required()->group("Output");
    add_integer(app, "--count", count, 1, 100000, "Clips (default: 64)")->group("Output");
    add_integer(app, "--num-frames", o.frames, 2, 9999, "Frames a clip (default: 17)")->group("Output");
    add_size(app, "--size", o.width, o.height, "Pixels (default: 64x64)")->group("Output");
    add_grid(app, "--token", token, "Also write where the surface of each token goes, a token being FRAMESxHEIGHTxWIDTH of the clip: 4x8x8 with the Haar codec")->group("Output");
    add_integer(app, "--sprites", o.sprites, 0, 32, "Shapes a clip (default: 3)")->group("Scene");
    add_number(app, "--speed-from", o.slowest, 0.01, 64, "Pixels a frame of the slowest (default: 0.5)")->group("Scene");
    add_number(app, "--speed-to", o.fastest, 0.01, 64, "Pixels a frame of the fastest (default: 4)")->group("Scene");
    add_number(app, "--grain", o.grain, 1, 256, "Pixels of the finest texture (default: 4)")->group("Scene");
    add_number(app, "--pan", o.pan, 0, 64, "Pixels a frame of the background (default: 0)")->group("Scene");
    add_integer(app, "--hold", o.hold, 1, 64, "Frames that show one moment, after the first frame (default: 1)")->group("Scene");
    add_number(app, "--snap", o.snap, 0, 64, "Round places to multiples of so many pixels; 0: as they come (default: 0)")->group("Scene");
    add_number(app, "--saturation", o.saturation, 0, 1, "Of the colours of the shapes; 0: grey (default: 1)")->group("Scene");
  }, [&](Tool& tool) {
    if (std::filesystem::exists(out)) throw usage_error(out + " exists", "choose a new folder");
    const bool tokens = token[0] > 0;
    const TokenGrid grid = tokens ? token_grid(o, {token[0], token[1], token[2]}) : TokenGrid{};
    for (int64_t i = 0; i < count; ++i) {
      tool.stop.throw_if_requested();
      const std::string name = fmt::format("clip-{:05}", i);
      const MotionScene scene(o, tool.flags.seed.value_or(0), static_cast<uint64_t>(i));
      write_motion_clip(out, name, scene, o);
      if (tokens) write_motion_displacement(out, name, scene, grid);
    }
    tool.print("{} clips in {}/clips\n", count, out);
    return 0;
  });
}
