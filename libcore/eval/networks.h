// The networks that dimensions need, from the folder --weights: opened and checked before any video is decoded, then shared by
// all videos and threads.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "eval/weights.h"
#include "kernels/stream.h"
#include "text/clip_tokenizer.h"
#include "vision/aesthetic.h"
#include "vision/amt.h"
#include "vision/clip.h"
#include "vision/dino.h"
#include "vision/musiq.h"
#include "vision/place.h"
#include "vision/raft.h"
#include "vision/viclip.h"

namespace megaslide {

struct UsedNetwork {
  std::string path, sha256;
  std::string licence;  // of the published file; the user's own may differ
};

class EvalNetworks {
 public:
  // Loads what `dimensions` need and the folder holds, and with static_filter RAFT, which must be there. compute: kF32, or kBF16 for the
  // products of transformers. device: where they compute, null for the processor; it outlives them. Throws Error naming file and tensor
  // for a file that is damaged, no such network, or holds values that are not finite.
  EvalNetworks(const WeightsReport& weights, const std::vector<std::string>& dimensions, DType compute, ThreadPool& pool,
               bool static_filter = false, ModelMemory* device = nullptr);

  DType compute() const { return compute_; }
  bool on_device() const { return device_ != nullptr; }

  // A thread's turn to compute: on the processor with its own pool, beside the others; on a device alone.
  class Turn {
   public:
    Turn(const EvalNetworks& networks, ThreadPool& pool) : stream_(pool), place_(networks.device_ ? Place(*networks.device_) : Place(stream_)) {
      if (networks.device_) lock_ = std::unique_lock(networks.device_mutex_);
    }
    const Place& place() const { return place_; }

   private:
    PoolStream stream_;
    Place place_;
    std::unique_lock<std::mutex> lock_;
  };

  // CHECK that the network has been loaded.
  const DinoNetwork& dino() const { return of(dino_); }
  const ClipNetwork& clip_b32() const { return of(clip_b32_); }
  const ClipNetwork& clip_l14() const { return of(clip_l14_); }
  const AestheticHead& aesthetic_head() const { return of(aesthetic_head_); }
  const ViclipNetwork& viclip() const { return of(viclip_); }
  const Raft& raft() const { return of(raft_); }
  const Amt& amt() const { return of(amt_); }
  const MusiqNetwork& musiq() const { return of(musiq_); }

  // Features of a text, kept for the next video that has it. Throws a usage Error for a text longer than CLIP's context;
  // ViCLIP's is cut.
  std::vector<float> clip_text(const std::string& text, ThreadPool& pool) const;
  std::vector<float> viclip_text(const std::string& text, ThreadPool& pool) const;

  // By network; with them "clip_vocabulary" where texts are split.
  const std::map<std::string, UsedNetwork>& used() const { return used_; }

 private:
  template <class T>
  static const T& of(const std::unique_ptr<T>& network) {
    MS_CHECK(network != nullptr, "a network that no dimension asked for");
    return *network;
  }
  void load_tokenizer(const WeightsReport& weights);
  void require_vocabulary(int64_t ids, const std::string& path) const;

  DType compute_;
  ModelMemory* device_;
  mutable std::mutex device_mutex_;
  std::unique_ptr<DinoNetwork> dino_;
  std::unique_ptr<ClipNetwork> clip_b32_, clip_l14_;
  std::unique_ptr<AestheticHead> aesthetic_head_;
  std::unique_ptr<ViclipNetwork> viclip_;
  std::unique_ptr<Raft> raft_;
  std::unique_ptr<Amt> amt_;
  std::unique_ptr<MusiqNetwork> musiq_;
  std::unique_ptr<ClipTokenizer> tokenizer_;
  std::map<std::string, UsedNetwork> used_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::vector<float>> texts_;  // "clip:" or "viclip:" and the text
};

}  // namespace megaslide
