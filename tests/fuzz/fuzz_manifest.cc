// manifest.json of a model directory, and the text written for what it says.
#include "io/model_directory.h"
#include "tests/fuzz/fuzz.h"

using namespace megaslide;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ModelManifest manifest;
  if (!fuzz::accepts([&] { manifest = parse_manifest(std::string(fuzz::text_of(data, size)), "manifest.json"); })) return 0;
  for (const ManifestFile& f : manifest.files) MS_CHECK(f.bytes >= 0 && !f.name.starts_with("..") && f.name[0] != '/', "{}", f.name);
  const std::string text = manifest_to_text(manifest);
  const ModelManifest second = parse_manifest(text, "again");
  MS_CHECK(second.digest_ok && manifest_to_text(second) == text);
  return 0;
}
