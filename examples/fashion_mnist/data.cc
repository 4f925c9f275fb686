// SPDX-License-Identifier: Apache-2.0
#include "data.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace fashion {
namespace {

constexpr uint32_t kImagesMagic = 0x00000803;  // unsigned bytes, three dimensions
constexpr uint32_t kLabelsMagic = 0x00000801;  // unsigned bytes, one dimension
constexpr uint32_t kMostImages = 10'000'000;   // a header may claim 2^32; nobody has that many

const char kNextStep[] =
    "; install Debian's package dataset-fashion-mnist, or give --data a directory with the four "
    "files of https://github.com/zalandoresearch/fashion-mnist";

struct CloseGz {
  void operator()(gzFile file) const { gzclose_r(file); }
};
using GzHandle = std::unique_ptr<gzFile_s, CloseGz>;

Error bad_file(const std::string& path, const std::string& why) {
  return path + ": " + why + kNextStep;
}

/// One IDX file being read. zlib reads plain files too.
class IdxFile {
 public:
  explicit IdxFile(const std::string& path) : path_(path) {}

  Error open() {
    struct stat status;
    if (stat(path_.c_str(), &status) != 0) return bad_file(path_, std::strerror(errno));
    if (!S_ISREG(status.st_mode)) return bad_file(path_, "is no regular file");
    file_.reset(gzopen(path_.c_str(), "rb"));
    if (!file_) return bad_file(path_, errno != 0 ? std::strerror(errno) : "out of memory");
    gzbuffer(file_.get(), 1 << 17);
    return {};
  }

  Error read_bytes(void* out, size_t bytes, const char* what) {
    auto* cursor = static_cast<uint8_t*>(out);
    while (bytes > 0) {
      const auto part = static_cast<unsigned>(std::min<size_t>(bytes, 1u << 30));
      const int got = gzread(file_.get(), cursor, part);
      if (got < 0) return bad_file(path_, "is damaged (" + gzip_error() + ")");
      if (got == 0) return bad_file(path_, std::string("is truncated: ends inside its ") + what);
      cursor += got;
      bytes -= static_cast<size_t>(got);
    }
    return {};
  }

  Error read_number(uint32_t* out) {
    uint8_t bytes[4];
    if (Error error = read_bytes(bytes, sizeof bytes, "header"); !error.empty()) return error;
    *out = uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
    return {};
  }

  /// Reads the magic number and the number of items.
  Error read_header(uint32_t magic, uint32_t* out_count) {
    uint32_t found = 0;
    if (Error error = read_number(&found); !error.empty()) return error;
    if (found != magic) {
      return bad_file(path_, "has magic number " + std::to_string(found) + ", expected " +
                                 std::to_string(magic));
    }
    if (Error error = read_number(out_count); !error.empty()) return error;
    if (*out_count == 0) return bad_file(path_, "holds no items");
    if (*out_count > kMostImages) {
      return bad_file(path_, "claims " + std::to_string(*out_count) + " items, more than " +
                                 std::to_string(kMostImages));
    }
    return {};
  }

  /// The file must end here; at its end zlib also checks the checksum.
  Error read_end() {
    uint8_t extra;
    const int got = gzread(file_.get(), &extra, 1);
    if (got < 0) return bad_file(path_, "is damaged (" + gzip_error() + ")");
    if (got > 0) return bad_file(path_, "goes on after its last item");
    return {};
  }

 private:
  std::string gzip_error() {
    int code = 0;
    const char* text = gzerror(file_.get(), &code);
    return code == Z_ERRNO ? std::strerror(errno) : text;
  }

  const std::string path_;
  GzHandle file_;
};

Error read_images(const std::string& path, std::vector<uint8_t>* out, uint32_t* out_count) {
  IdxFile file(path);
  if (Error error = file.open(); !error.empty()) return error;
  if (Error error = file.read_header(kImagesMagic, out_count); !error.empty()) return error;
  for (const char* side : {"rows", "columns"}) {
    uint32_t found = 0;
    if (Error error = file.read_number(&found); !error.empty()) return error;
    if (found != kImageSide) {
      return bad_file(path, "has images of " + std::to_string(found) + " " + side + ", expected " +
                                std::to_string(kImageSide));
    }
  }
  out->resize(size_t{*out_count} * kImagePixels);
  if (Error error = file.read_bytes(out->data(), out->size(), "images"); !error.empty()) {
    return error;
  }
  return file.read_end();
}

Error read_labels(const std::string& path, std::vector<uint8_t>* out) {
  IdxFile file(path);
  if (Error error = file.open(); !error.empty()) return error;
  uint32_t count = 0;
  if (Error error = file.read_header(kLabelsMagic, &count); !error.empty()) return error;
  out->resize(count);
  if (Error error = file.read_bytes(out->data(), out->size(), "labels"); !error.empty()) {
    return error;
  }
  for (size_t i = 0; i < out->size(); ++i) {
    if ((*out)[i] >= kClassCount) {
      return bad_file(path, "has label " + std::to_string((*out)[i]) + " at item " +
                                std::to_string(i) + ", expected 0 to 9");
    }
  }
  return file.read_end();
}

}  // namespace

Error read_dataset(const std::string& images_path, const std::string& labels_path, Dataset* out) {
  Dataset dataset;
  uint32_t image_count = 0;
  if (Error error = read_images(images_path, &dataset.pixels, &image_count); !error.empty()) {
    return error;
  }
  if (Error error = read_labels(labels_path, &dataset.labels); !error.empty()) return error;
  if (image_count != dataset.labels.size()) {
    return bad_file(images_path, "holds " + std::to_string(image_count) + " images, but " +
                                     labels_path + " holds " +
                                     std::to_string(dataset.labels.size()) + " labels");
  }
  *out = std::move(dataset);
  return {};
}

Error read_fashion_mnist(const std::string& directory, Dataset* out_train, Dataset* out_test) {
  const std::string base = directory + "/";
  Error error = read_dataset(base + "train-images-idx3-ubyte.gz",
                             base + "train-labels-idx1-ubyte.gz", out_train);
  if (!error.empty()) return error;
  return read_dataset(base + "t10k-images-idx3-ubyte.gz", base + "t10k-labels-idx1-ubyte.gz",
                      out_test);
}

}  // namespace fashion
