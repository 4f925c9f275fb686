// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fashion {

/// Empty: success. Otherwise one line: what, which file, what to do.
using Error = std::string;

inline constexpr int kImageSide =
    28;  // pixels; the format's files say so, and the reader checks it
inline constexpr int kImagePixels = kImageSide * kImageSide;
inline constexpr int kClassCount = 10;

/// Grey images of 28 x 28 pixels, row by row, with one label in [0, 10) each.
struct Dataset {
  std::vector<uint8_t> pixels;  // count() * kImagePixels
  std::vector<uint8_t> labels;

  int64_t count() const { return static_cast<int64_t>(labels.size()); }
  /// Drops all but the first `images`.
  void keep_first(int64_t images) {
    if (images >= count()) return;
    labels.resize(static_cast<size_t>(images));
    pixels.resize(static_cast<size_t>(images) * kImagePixels);
  }
  const uint8_t* image(int64_t index) const { return pixels.data() + index * kImagePixels; }
};

/// Reads a pair of IDX files, gzipped or plain. Nothing in them is trusted.
Error read_dataset(const std::string& images_path, const std::string& labels_path, Dataset* out);

/// Reads the four files of Fashion-MNIST (or of MNIST, which has the same names and format).
Error read_fashion_mnist(const std::string& directory, Dataset* out_train, Dataset* out_test);

}  // namespace fashion
