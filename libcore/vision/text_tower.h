// The text towers of CLIP and ViCLIP: token and place vectors, a causal transformer, and the row of the end token through a norm and a
// projection (spec vbench.md, vbench-networks.md §1). The end token has the largest id: the first of the largest is taken, and by
// causality nothing behind it is computed.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "vision/transformer.h"

namespace megaslide {

struct TextTowerNames {
  std::string tokens, places, norm, projection;
  bool projection_from_right = false;  // [width, embed] rather than [embed, width]
  TransformerNames blocks;
};

class TextTower {
 public:
  TextTower() = default;
  // Adds the tensors to `expected`, for NetworkWeights::require, and gives the shape that the file's own have.
  static TransformerShape expect(std::map<std::string, Shape>& expected, const NetworkWeights& file, const TextTowerNames& names, double eps);
  TextTower(const Place& place, const NetworkWeights& file, const TransformerShape& shape, const TextTowerNames& names, DType compute);

  int64_t vocabulary() const { return tokens_.shape()[0]; }
  int64_t context() const { return places_.shape()[0]; }
  int64_t embed() const { return projection_.outputs(); }

  // ids: start, text, end, and padding of smaller ids, if any. Gives F32 [embed], not normalised. Throws Error for no ids, more than
  // the context, or ids that are not of the vocabulary.
  HostTensor feature(const Place& place, const std::vector<int64_t>& ids) const;

 private:
  HostTensor tokens_, places_;  // (vocabulary, width), (context, width), on the processor
  Transformer transformer_;
  AffineNorm norm_;
  PackedLinear projection_;  // fp32
};

// `name` of `file` as a matrix of one extent given; Throws Error where it is another.
int64_t rows_of_matrix(const NetworkWeights& file, const std::string& name, int64_t columns);
int64_t columns_of_matrix(const NetworkWeights& file, const std::string& name, int64_t rows);

}  // namespace megaslide
