// What a cache holds besides its clips: captions on their way, the empty caption, the lock.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include <sys/wait.h>
#include <unistd.h>

#include "base/atomic_file.h"
#include "base/error.h"
#include "data/cache.h"
#include "data/caption_rows.h"
#include "data/clip.h"
#include "data/encode.h"
#include "data/resize.h"
#include "io/video.h"
#include "model/text_encoder.h"
#include "tests/data_room/encode_fixture.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;

ModelConfig small_model() { return testing_support::small_encoding_model(4); }

class Cache : public testing_support::EncodeFixture {
 protected:
  EncodeReport run(const ModelConfig& model = small_model(), int64_t frames = 17) {
    EncodeOptions o;
    o.datasets = {root_ + "/clips"};
    o.cache = cache();
    o.rule = make_selection_rule(model, 64, 64, frames, 0);
    ThreadPool pool(2);
    return encode_dataset(o, model, pool);
  }
  static size_t files_in(const std::string& dir) {
    size_t n = 0;
    std::error_code ignored;
    for (fs::directory_iterator it(dir, ignored), end; it != end; it.increment(ignored)) ++n;
    return n;
  }
};

TEST_F(Cache, HoldsTheEmptyCaption) {
  run();
  const SafetensorsFile empty = SafetensorsFile::open(empty_text_file(cache()));
  EXPECT_EQ(empty.view("text").shape, (Shape{0, 32})) << "the built-in encoder has no row for it";
  EXPECT_EQ(empty.metadata().at("text_encoder"), "hashed-ngram-1:4x32");
  EXPECT_NE(read_file(cache() + "/index.json").find("\"empty_text\": \"empty_text.safetensors\""), std::string::npos);
  ModelConfig other = small_model();
  other.text_dim = 64;
  run(other);
  EXPECT_EQ(SafetensorsFile::open(empty_text_file(cache())).view("text").shape, (Shape{0, 64})) << "made again for another encoder";
  put(empty_text_file(cache()), "damaged");
  run(other);
  EXPECT_NO_THROW(require_intact_text(SafetensorsFile::open(empty_text_file(cache()))));
}

TEST_F(Cache, CaptionsOfClipsThatWereDroppedWaitForTheNextRun) {
  put(root_ + "/clips/broken.mp4", "no video");
  put(root_ + "/clips/broken.txt", "a caption of its own");
  const EncodeReport first = run();
  EXPECT_EQ(first.kept, 4);
  EXPECT_EQ(first.texts_encoded, 5);
  EXPECT_EQ(files_in(cache() + "/captions"), 1u);
  EXPECT_EQ(run().texts_encoded, 0);
  // Whole again: its rows go into its file, and nothing is left of the way.
  fs::copy_file(root_ + "/clips/tree.mp4", root_ + "/clips/broken.mp4", fs::copy_options::overwrite_existing);
  const EncodeReport mended = run();
  EXPECT_EQ(mended.kept, 5);
  EXPECT_EQ(mended.texts_encoded, 0);
  EXPECT_EQ(mended.encoded, 0) << "the latent of tree.mp4";
  EXPECT_FALSE(fs::exists(cache() + "/captions"));
}

TEST_F(Cache, CaptionsOfARunThatWasEndedAreFound) {
  fs::create_directories(cache() + "/clips");
  CaptionRows rows(cache(), {});
  ThreadPool pool(1);
  EXPECT_EQ(rows.provide({{"0123456789ab", "one two three four five six"}, {"ba9876543210", "seven"}}, small_model(), DType::kBF16, pool, {}), 2);
  CaptionRows again(cache(), {});
  EXPECT_EQ(again.provide({{"0123456789ab", "one two three four five six"}, {"cccccccccccc", "new"}}, small_model(), DType::kBF16, pool, {}), 1);
  EXPECT_EQ(again.rows("0123456789ab").note, "the caption has 6 tokens, the model reads 4: its end is cut off");
  const HostTensor want = make_text_encoder(small_model())->encode(pool, "one two three four five six").rows;
  const HostTensor got = again.rows("0123456789ab").text;
  ASSERT_EQ(got.shape(), want.shape());
  EXPECT_EQ(std::vector<float>(got.f32(), got.f32() + got.elements()), std::vector<float>(want.f32(), want.f32() + want.elements()));
  put(cache() + "/captions/cccccccccccc.safetensors", "damaged");
  CaptionRows third(cache(), {});
  EXPECT_EQ(third.provide({{"cccccccccccc", "new"}}, small_model(), DType::kBF16, pool, {}), 1);
}

TEST_F(Cache, ALongCaptionIsCutWithAWarning) {
  put(root_ + "/clips/tree.txt", "one two three four five six");
  const auto warned = [](const EncodeReport& r) {
    for (const std::string& w : r.warnings)
      if (w == "tree.mp4: the caption has 6 tokens, the model reads 4: its end is cut off") return true;
    return false;
  };
  EXPECT_TRUE(warned(run()));
  EXPECT_TRUE(warned(run())) << "also where nothing is encoded";
}

TEST_F(Cache, HasOneWriter) {
  run();
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t other = fork();
  if (other == 0) {
    {
      const CacheLock lock(cache());
      char c = 0;
      if (write(ready[1], "r", 1) != 1 || read(done[0], &c, 1) != 1) _exit(1);
    }
    _exit(0);
  }
  char c = 0;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  try {
    run();
    ADD_FAILURE() << "two writers";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), cache() + ": another encode-clips is writing this cache (process " + std::to_string(other) + ")");
  }
  EXPECT_EQ(LatentCache::open(cache()).size(), 4u) << "readers need no lock";
  ASSERT_EQ(write(done[1], "d", 1), 1);
  int status = 0;
  waitpid(other, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(run().encoded, 0);
}

TEST_F(Cache, OneLatentForTwoCaptions) {
  put(root_ + "/t.csv", "video,caption\nclips/tree.mp4,a\nclips/tree.mp4,b\n");
  EncodeOptions o;
  o.datasets = {root_ + "/t.csv"};
  o.cache = cache();
  o.rule = make_selection_rule(small_model(), 64, 64, 17, 0);
  ThreadPool pool(2);
  const EncodeReport r = encode_dataset(o, small_model(), pool);
  EXPECT_EQ(r.kept, 2);
  EXPECT_EQ(r.encoded, 1);
  EXPECT_EQ(r.texts_encoded, 2);
  const LatentCache c = LatentCache::open(cache());
  const LatentCache::Clip a = c.clip(0), b = c.clip(1);
  ASSERT_EQ(a.latent.shape, b.latent.shape);
  EXPECT_EQ(std::memcmp(a.latent.data, b.latent.data, static_cast<size_t>(a.latent.bytes())), 0);
  EXPECT_EQ(c.info(1).caption, "b");
}

// A folder of pictures, nine of one clip and eight of another: the cut before picture 9 is one before latent frame 3.
TEST_F(Cache, RemembersCuts) {
  SelectionRule rule;
  rule.buckets = {{64, 64, 0}};
  rule.max_frames = 17;
  const auto writer = create_video(root_ + "/joined", 64, 64, 16);
  for (const auto& [name, count] : {std::pair{"bunny-wakes", 9}, std::pair{"street", 8}}) {
    const HostTensor v = load_clip(root_ + "/clips/" + name + ".mp4", rule).video;
    for (int64_t t = 0; t < count; ++t) writer->write(picture_from_planes(v.f32() + t * 64 * 64, 17 * 64 * 64, 64, 64));
  }
  writer->close();
  fs::remove_all(root_ + "/clips");
  fs::create_directories(root_ + "/clips");
  fs::rename(root_ + "/joined", root_ + "/clips/joined");
  put(root_ + "/clips/joined.txt", "two shots");
  for (int i = 0; i < 2; ++i) {
    const EncodeReport report = run();
    ASSERT_EQ(report.kept, 1);
    EXPECT_EQ(report.clips[0].facts.cuts, std::vector<int64_t>{9});
    EXPECT_EQ(report.encoded, 1 - i) << "the second run finds it in the cache";
    EXPECT_EQ(LatentCache::open(cache()).info(0).latent_cuts, std::vector<int64_t>{3});
  }
  const std::string index = cache() + "/index.json", good = read_file(index);
  for (const char* bad : {"5", "0", "-1", "1.5", "\"3\"", "3, 3"}) {
    std::string text = good;
    const size_t at = text.find("\"latent_cuts\""), open = text.find('[', at), close = text.find(']', at);
    put(index, text.replace(open + 1, close - open - 1, bad));
    EXPECT_THROW(LatentCache::open(cache()), Error) << bad;
  }
}

}  // namespace
}  // namespace megaslide
