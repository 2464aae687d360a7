#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>

#include <nlohmann/json.hpp>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/md5.h"
#include "data/cache.h"
#include "data/encode.h"
#include "data/report.h"
#include "model/text_encoder.h"
#include "tests/data_room/encode_fixture.h"
#include "tests/support/temporary_folder.h"

namespace megaslide {
namespace {

namespace fs = std::filesystem;
using testing_support::TemporaryFolder;

ModelConfig small_model() { return testing_support::small_encoding_model(16); }

class Encode : public testing_support::EncodeFixture {
 protected:
  EncodeReport run(int64_t side = 64, int threads = 2, const std::string& to = {}, const ModelConfig& model = small_model()) {
    EncodeOptions o;
    o.datasets = {clips()};
    o.cache = to.empty() ? cache() : to;
    o.rule = make_selection_rule(model, side, side, 17, 0);
    ThreadPool pool(threads);
    return encode_dataset(o, model, pool);
  }
};

TEST_F(Encode, MakesACacheThatTrainingReads) {
  const EncodeReport r = run();
  EXPECT_EQ(r.kept, 4);
  EXPECT_EQ(r.encoded, 4);
  const LatentCache c = LatentCache::open(cache());
  ASSERT_EQ(c.size(), 4u);
  EXPECT_EQ(c.identity().codec, "haar-1");
  EXPECT_EQ(c.info(3).path, "tree.mp4");
  const LatentCache::Clip clip = c.clip(3);
  EXPECT_EQ(clip.latent.shape, (Shape{16, 5, 16, 16}));
  ThreadPool pool(1);
  const EncodedText text = make_text_encoder(small_model())->encode(pool, c.info(3).caption);
  ASSERT_EQ(clip.text.shape, text.rows.shape());
  EXPECT_EQ(std::memcmp(clip.text.data, text.rows.data(), static_cast<size_t>(text.rows.bytes())), 0);
  EXPECT_EQ(c.buckets().size(), 1u);
  EXPECT_EQ(c.buckets()[0].clips.size(), 4u);
  c.require_model(small_model());
  ModelConfig other = small_model();
  other.text_dim = 64;
  try {
    c.require_model(other);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("hashed-ngram-1:16x32"), std::string::npos) << e.message();
    EXPECT_NE(e.message().find("hashed-ngram-1:16x64"), std::string::npos) << e.message();
  }
}

TEST_F(Encode, DoesOnlyWhatChanged) {
  run();
  EXPECT_EQ(run().encoded, 0);

  put(clips() + "/tree.txt", "another caption");
  EXPECT_EQ(run().encoded, 0) << "a caption changes the text alone";
  const LatentCache changed = LatentCache::open(cache());
  EXPECT_EQ(changed.info(3).caption, "another caption");
  EXPECT_EQ(changed.clip(3).text.shape[0], 2);

  // Another clip under the same name, padded to the same size, with the same time stamp.
  const auto stamp = fs::last_write_time(clips() + "/tree.mp4");
  const auto size = fs::file_size(clips() + "/tree.mp4");
  std::string bytes = read_file(clips() + "/street.mp4");
  ASSERT_LE(bytes.size(), size);
  const auto pad = static_cast<uint32_t>(size - bytes.size());  // a "free" box
  ASSERT_GE(pad, 8u);
  const char head[8] = {static_cast<char>(pad >> 24), static_cast<char>(pad >> 16), static_cast<char>(pad >> 8), static_cast<char>(pad), 'f', 'r', 'e', 'e'};
  bytes.append(head, 8).append(pad - 8, '\0');
  put(clips() + "/tree.mp4", bytes);
  fs::last_write_time(clips() + "/tree.mp4", stamp);
  EXPECT_EQ(run().encoded, 1);

  fs::remove(clips() + "/street.mp4");
  fs::remove(clips() + "/street.txt");
  EXPECT_EQ(run().encoded, 0);
  EXPECT_EQ(LatentCache::open(cache()).size(), 3u);

  EXPECT_EQ(run(32).encoded, 3) << "a new size makes new latents";
  EXPECT_EQ(LatentCache::open(cache()).info(0).latent, (Shape{16, 5, 8, 8}));
  EXPECT_EQ(run(64).encoded, 0) << "beside the old";
}

TEST_F(Encode, DamagedEntriesAreMadeAgain) {
  const EncodeReport r = run();
  const std::string file = cached_clip_file(cache(), r.clips[0].key);
  const std::string whole = read_file(file);
  fs::resize_file(file, fs::file_size(file) / 2);
  EXPECT_THROW(LatentCache::open(cache()).clip(0), Error);
  EXPECT_EQ(run().encoded, 1);
  EXPECT_EQ(read_file(file), whole);
  put(file, whole.substr(0, whole.size() - 1) + static_cast<char>(whole.back() ^ 1));
  EXPECT_THROW(require_intact(LatentCache::open(cache()).clip(0)), Error) << "one bit";
  EXPECT_EQ(run().encoded, 1);
  EXPECT_EQ(read_file(file), whole);
  EXPECT_NO_THROW(require_intact(LatentCache::open(cache()).clip(0)));
  fs::remove(file);
  EXPECT_THROW(LatentCache::open(cache()), Error);
  EXPECT_EQ(run().encoded, 1);
}

TEST_F(Encode, StoppedRunGoesOn) {
  std::atomic<int> flag{0};
  EncodeOptions o;
  o.datasets = {clips()};
  o.cache = cache();
  o.rule = make_selection_rule(small_model(), 64, 64, 17, 0);
  ThreadPool pool(1);
  flag = 1;
  EXPECT_THROW(encode_dataset(o, small_model(), pool, StopToken(&flag)), Stopped);
  EXPECT_THROW(LatentCache::open(cache()), Error);
  EXPECT_EQ(run().encoded, 4);
}

TEST_F(Encode, ThreadsDoNotMatter) {
  const EncodeReport a = run(64, 1, root_ + "/one"), b = run(64, 4, root_ + "/four");
  EXPECT_EQ(read_file(root_ + "/one/index.json"), read_file(root_ + "/four/index.json"));
  for (const ClipReport& c : a.clips)
    EXPECT_EQ(read_file(cached_clip_file(root_ + "/one", c.key)), read_file(cached_clip_file(root_ + "/four", c.key)));
  EXPECT_EQ(report_json(a), report_json(b));
}

TEST_F(Encode, ABadClipCostsNoOther) {
  put(clips() + "/broken.mp4", "<html>sorry</html>");
  put(clips() + "/broken.txt", "a page");
  fs::copy(clips() + "/tree.mp4", clips() + "/twin.mp4");  // equal content under another name
  fs::copy(clips() + "/tree.txt", clips() + "/twin.txt");
  const EncodeReport r = run();
  EXPECT_EQ(r.kept, 5);
  EXPECT_EQ(r.dropped, 1);
  const auto json = nlohmann::json::parse(report_json(r));
  EXPECT_EQ(json["kept"], 5);
  EXPECT_EQ(json["clips"][0]["path"], "broken.mp4");
  EXPECT_EQ(json["clips"][0]["status"], "dropped");
  EXPECT_EQ(json["clips"][0]["bucket"], nullptr);
  EXPECT_NE(std::string(json["clips"][0]["reason"]).find("HTML"), std::string::npos);
  EXPECT_EQ(json["clips"][1]["size_decoded"], (std::vector<int>{128, 96}));
  EXPECT_EQ(json["clips"][1]["size_used"], (std::vector<int>{64, 64}));
  EXPECT_EQ(json["clips"][1]["bucket"], "64x64x17");
  EXPECT_EQ(json["clips"][1]["fps"], 16);
}

TEST_F(Encode, AFolderThatServedAnotherModelIsNamed) {
  const auto named = [](const EncodeReport& r) { return !r.warnings.empty() && r.warnings[0].find("was made for the text encoder") != std::string::npos; };
  EXPECT_FALSE(named(run()));
  ModelConfig other = small_model();
  other.text_dim = 64;
  const EncodeReport r = run(64, 2, {}, other);
  EXPECT_TRUE(named(r));
  EXPECT_EQ(r.texts_encoded, 4);
  EXPECT_FALSE(named(run(64, 2, {}, other)));
  put(cache() + "/index.json", "{");
  EXPECT_EQ(run(64, 2, {}, other).kept, 4) << "an index that nothing reads stops nobody";
}

TEST_F(Encode, NothingLeftKeepsTheOldIndex) {
  run();
  for (const auto& e : fs::directory_iterator(clips()))
    if (e.path().extension() == ".mp4") put(e.path().string(), "");
  const EncodeReport r = run();
  EXPECT_EQ(r.kept, 0);
  EXPECT_EQ(r.dropped, 4);
  EXPECT_EQ(LatentCache::open(cache()).size(), 4u);
}

TEST_F(Encode, NothingFitsSaysWhatWould) {
  EncodeOptions o;
  o.datasets = {clips()};
  o.cache = cache();
  o.rule = make_selection_rule(small_model(), 64, 64, 0, 0, "49 81", "b");
  ThreadPool pool(2);
  const EncodeReport r = encode_dataset(o, small_model(), pool);
  EXPECT_EQ(r.kept, 0);
  EXPECT_EQ(r.clips[0].facts.reason, "too short: 33 frames < 49, the smallest bucket");
  ASSERT_EQ(r.warnings.size(), 1u);
  EXPECT_EQ(r.warnings[0], "nothing fits: the longest clip has 33 frames, the smallest bucket 49");
  EXPECT_FALSE(fs::exists(cache() + "/index.json"));
}

TEST_F(Encode, RepeatedRowsShareTheirFile) {
  put(root_ + "/t.csv", "video,caption\nclips/tree.mp4,a\nclips/tree.mp4,b\nclips/../clips/tree.mp4,a\n");
  EncodeOptions o;
  o.datasets = {root_ + "/t.csv", root_ + "/t.csv"};
  o.cache = cache();
  o.rule = make_selection_rule(small_model(), 64, 64, 17, 0);
  ThreadPool pool(4);
  const EncodeReport r = encode_dataset(o, small_model(), pool);
  EXPECT_EQ(r.kept, 4);
  EXPECT_EQ(r.dropped, 2);
  const LatentCache c = LatentCache::open(cache());
  EXPECT_EQ(c.info(0).key, c.info(2).key);
  EXPECT_NE(c.info(0).key, c.info(1).key);
  EXPECT_EQ(c.info(1).caption, "b");
  EXPECT_EQ(c.info(3).caption, "b");
}

TEST_F(Encode, FrameMd5IsOfTheDecodedPictures) {
  EncodeOptions o;
  o.datasets = {clips()};
  o.cache = cache();
  o.rule = make_selection_rule(small_model(), 64, 64, 5, 0);
  o.frame_md5 = true;
  ThreadPool pool(2);
  const EncodeReport r = encode_dataset(o, small_model(), pool);
  for (const ClipReport& c : r.clips) {
    ASSERT_EQ(c.md5.size(), 33u);
    EXPECT_EQ(c.md5[0].size(), 32u);
  }
  EXPECT_EQ(encode_dataset(o, small_model(), pool).clips[0].md5, r.clips[0].md5);
}

TEST_F(Encode, PicturesAreWhatWasEncoded) {
  fs::copy(std::string(MEGASLIDE_TEST_DATA) + "/cases/mixed", root_ + "/mixed", fs::copy_options::recursive);
  EncodeOptions o;
  o.datasets = {root_ + "/mixed"};  // a clip, a frame folder and a still: the last two have no rate
  o.cache = cache();
  o.pictures = root_ + "/deep/pictures";
  o.rule = make_selection_rule(small_model(), 0, 0, 9, 0);
  ThreadPool pool(2);
  const EncodeReport r = encode_dataset(o, small_model(), pool);
  ASSERT_EQ(r.kept, 3);
  for (const ClipReport& c : r.clips) {
    const auto pictures = frame_folder_pictures(c.pictures);
    ASSERT_EQ(static_cast<int64_t>(pictures.size()), c.facts.frames_used) << c.path;
    EXPECT_EQ(read_png(pictures[0]).width, c.facts.used_width);
  }
}

TEST_F(Encode, HtmlReportStandsAlone) {
  put(clips() + "/tree.txt", "<script>alert(1)</script> & \"more\"");
  EncodeOptions o;
  o.datasets = {clips()};
  o.cache = cache();
  o.rule = make_selection_rule(small_model(), 64, 64, 17, 0);
  o.strips = true;
  ThreadPool pool(2);
  const EncodeReport r = encode_dataset(o, small_model(), pool);
  EXPECT_FALSE(r.clips[0].source_strip.empty() || r.clips[0].used_strip.empty());
  const std::string html = report_html(r, "clips & more");
  EXPECT_EQ(html.find("<script"), std::string::npos);
  EXPECT_EQ(html.find("http"), std::string::npos);
  EXPECT_NE(html.find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(html.find("data:image/png;base64,iVBORw0KGgo"), std::string::npos);
}

TEST_F(Encode, CacheIndexIsReadStrictly) {
  run();
  const std::string index = cache() + "/index.json";
  const std::string text = read_file(index);
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string t = text;
    const size_t at = t.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    put(index, t.replace(at, from.size(), to));
    EXPECT_THROW(LatentCache::open(cache()), Error) << to;
  };
  broken("megaslide-cache", "other");
  broken("\"version\": 1", "\"version\": 2");
  broken("\"key\": \"", "\"key\": \"../../");
  broken("\"text_rows\": ", "\"text_rows\": -");
  broken("}", "");
  put(index, text);
  EXPECT_EQ(LatentCache::open(cache()).size(), 4u);
}

TEST(Md5, KnownDigests) {  // RFC 1321, A.5
  const auto of = [](const std::string& s) { return md5_hex(std::as_bytes(std::span(s))); };
  EXPECT_EQ(of(""), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(of("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
}

TEST(EncodeFiles, TensorAndTexts) {
  const TemporaryFolder folder;
  const std::string& root = folder.path();
  HostTensor video(DType::kF32, {2, 3, 5, 8, 16});
  for (int64_t i = 0; i < video.elements(); ++i) video.f32()[i] = static_cast<float>(i % 17) / 8 - 1;
  write_safetensors(root + "/v.safetensors", {{"video", video.view()}});
  ThreadPool pool(2);
  encode_tensor_file(root + "/v.safetensors", root + "/l.safetensors", small_model(), pool);
  const SafetensorsFile latents = SafetensorsFile::open(root + "/l.safetensors");
  for (const char* name : {"mean", "logvar", "mean_normalised"}) EXPECT_EQ(latents.view(name).shape, (Shape{2, 16, 2, 2, 4})) << name;

  const auto json = nlohmann::json::parse(encode_texts({"A  red kite", ""}, root + "/t.safetensors", small_model(), pool));
  EXPECT_EQ(json["texts"][0]["cleaned"], "A red kite");
  EXPECT_EQ(json["texts"][0]["ids"].size(), 3u);
  const SafetensorsFile texts = SafetensorsFile::open(root + "/t.safetensors");
  EXPECT_EQ(texts.view("embeds.0").shape, (Shape{16, 32}));
  EXPECT_EQ(texts.view("ids.0").shape, (Shape{3}));
  EXPECT_EQ(texts.view("ids.1").shape, (Shape{0}));
  const auto* rows = reinterpret_cast<const float*>(texts.view("embeds.0").data);
  for (int64_t i = 3 * 32; i < 16 * 32; ++i) EXPECT_EQ(rows[i], 0);

  HostTensor wrong(DType::kF32, {3, 5, 8, 16});
  write_safetensors(root + "/w.safetensors", {{"video", wrong.view()}});
  EXPECT_THROW(encode_tensor_file(root + "/w.safetensors", root + "/x.safetensors", small_model(), pool), Error);
}

}  // namespace
}  // namespace megaslide
