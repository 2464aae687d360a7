// Dimensions that a network sees (spec vbench.md, "Dimensions"): frames are preprocessed, become features, and a score is a cosine or
// a head's output. The networks live longer than the metrics.
#pragma once
#include <memory>
#include <string>

#include "eval/metric.h"
#include "eval/networks.h"

namespace megaslide {

// subject_consistency (DINO) and background_consistency (CLIP ViT-B/32): for every frame i ≥ 1 the mean of its features' cosines with
// those of the frame before and of the first, each at least 0; a video's score is their mean, the dimension's the mean over frames.
std::unique_ptr<Metric> make_subject_metric(const EvalNetworks& networks);
std::unique_ptr<Metric> make_background_metric(const EvalNetworks& networks);
// aesthetic_quality: a tenth of the head's score, mean over frames.
std::unique_ptr<Metric> make_aesthetic_metric(const EvalNetworks& networks);
// appearance_style: CLIP's logit of frame and style phrase over 100, mean over frames. An empty phrase: not applicable.
std::unique_ptr<Metric> make_appearance_metric(const EvalNetworks& networks, const std::string& style);
// motion_smoothness (AMT-S): every other frame against what the frames beside it predict, (255 − mean difference)/255.
std::unique_ptr<Metric> make_smoothness_metric(const EvalNetworks& networks);
// dynamic_degree (RAFT): 1 where enough pairs of frames about an eighth of a second apart move far, else 0. fps 0: unknown.
std::unique_ptr<Metric> make_dynamic_metric(const EvalNetworks& networks, double fps);
// temporal_flickering of videos that VBench's static filter (RAFT) lets pass; of the others it is not applicable.
std::unique_ptr<Metric> make_static_flicker_metric(const EvalNetworks& networks);
// imaging_quality (MUSIQ): 0 … 100, mean over frames.
std::unique_ptr<Metric> make_imaging_metric(const EvalNetworks& networks);
// overall_consistency and temporal_style: the cosine of the features of ViCLIP's frames and of the prompt.
std::unique_ptr<Metric> make_viclip_metric(const EvalNetworks& networks, const std::string& prompt);

}  // namespace megaslide
