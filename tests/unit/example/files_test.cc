// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "../contains.h"
#include "checkpoint.h"
#include "curves.h"
#include "data.h"
#include "options.h"

using namespace fashion;
using dt::test::contains;

namespace {

/// A directory that goes away with its files.
class Folder {
 public:
  Folder() {
    char pattern[] = "/tmp/dt_example_XXXXXX";
    path_ = mkdtemp(pattern);
  }
  ~Folder() {
    for (const std::string& file : files_) unlink(file.c_str());
    rmdir(path_.c_str());
  }
  std::string file(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }
  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = file(name);
    std::FILE* out = std::fopen(path.c_str(), "wb");
    REQUIRE(out != nullptr);
    REQUIRE(std::fwrite(bytes.data(), 1, bytes.size(), out) == bytes.size());
    std::fclose(out);
    return path;
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

std::string read_all(const std::string& path) {
  std::string bytes;
  std::FILE* in = std::fopen(path.c_str(), "rb");
  REQUIRE(in != nullptr);
  for (int c = std::fgetc(in); c != EOF; c = std::fgetc(in)) bytes += static_cast<char>(c);
  std::fclose(in);
  return bytes;
}

std::string number(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

std::string images(uint32_t count, uint32_t magic = 0x803, uint32_t side = 28) {
  return number(magic) + number(count) + number(side) + number(28) +
         std::string(count * kImagePixels, '\x11');
}
std::string labels(uint32_t count, uint32_t magic = 0x801) {
  return number(magic) + number(count) + std::string(count, '\x09');
}

Checkpoint make_checkpoint() {
  Checkpoint checkpoint;
  checkpoint.optimizer = OptimizerKind::kAdamW;
  checkpoint.seed = -3;
  checkpoint.batch = 120;
  checkpoint.step = 2;
  checkpoint.position = 2;
  checkpoint.shape = {2, 1};
  checkpoint.parameters = {1.5f, -2, 3};
  checkpoint.optimizer_state = {1, 2, 3, 4, 5, 6};
  checkpoint.history = {{2.5f, 0.25f}, {2, 0.5f}};
  checkpoint.evaluations = {{2, 1.25, 0.75}};
  return checkpoint;
}

}  // namespace

TEST_CASE("files to write are checked before training") {
  Folder folder;
  Options options;
  options.curves = "";
  CHECK(check_outputs(options) == "");
  options.save = folder.file("new");
  options.curves = folder.write("old", "");
  options.loss_log = "/dev/null";
  CHECK(check_outputs(options) == "");
  options.loss_log = "/nonexistent/log";
  CHECK(check_outputs(options) ==
        "cannot write --loss-log /nonexistent/log: /nonexistent: No such file or directory; name a "
        "file that you may write");
  options.save = "/dev/null";
  CHECK(check_outputs(options) ==
        "cannot write --save /dev/null: it is no regular file; name another one");
  options.save = "/tmp";
  CHECK(check_outputs(options) == "cannot write --save /tmp: it is a directory; add a file's name");
}

TEST_CASE("images and labels are read") {
  Folder folder;
  Dataset dataset;
  const Error error =
      read_dataset(folder.write("i", images(3)), folder.write("l", labels(3)), &dataset);
  CHECK(error == "");
  CHECK(dataset.count() == 3);
  CHECK(dataset.image(2)[783] == 0x11);
  CHECK(dataset.labels == std::vector<uint8_t>{9, 9, 9});
}

TEST_CASE("a bad data file is one clear error that names it and the package") {
  Folder folder;
  const std::string good_images = folder.write("images", images(3));
  const std::string good_labels = folder.write("labels", labels(3));
  std::string bad_label = labels(3);
  bad_label.back() = 10;
  const struct {
    std::string images, labels, text;
  } cases[] = {
      {folder.file("absent"), good_labels, "absent: No such file or directory"},
      {folder.write("i1", ""), good_labels, "i1: is truncated: ends inside its header"},
      {folder.write("i2", images(3).substr(0, 2000)), good_labels,
       "i2: is truncated: ends inside its images"},
      {folder.write("i3", images(3, 0x801)), good_labels,
       "i3: has magic number 2049, expected 2051"},
      {folder.write("i4", images(3, 0x803, 29)), good_labels,
       "i4: has images of 29 rows, expected 28"},
      {folder.write("i5", images(3) + "x"), good_labels, "i5: goes on after its last item"},
      {folder.write("i6", images(0)), good_labels, "i6: holds no items"},
      {folder.write("i7", number(0x803) + number(0xffffffff)), good_labels,
       "i7: claims 4294967295 items"},
      {folder.write("i8", images(2)), good_labels, "holds 2 images, but "},
      {good_images, folder.write("l1", labels(3).substr(0, 9)),
       "l1: is truncated: ends inside its labels"},
      {good_images, folder.write("l2", bad_label), "l2: has label 10 at item 2"},
      {"/", good_labels, "/: is no regular file"},
  };
  for (const auto& each : cases) {
    Dataset dataset;
    const Error error = read_dataset(each.images, each.labels, &dataset);
    CHECK(contains(error, each.text));
    CHECK(contains(error, "install Debian's package dataset-fashion-mnist"));
    CHECK(dataset.count() == 0);
  }
}

TEST_CASE("a gzip file that was cut or damaged is an error") {
  Folder folder;
  const std::string path = folder.file("images.gz");
  gzFile out = gzopen(path.c_str(), "wb");
  const std::string content = images(3);
  gzwrite(out, content.data(), static_cast<unsigned>(content.size()));
  gzclose(out);
  const std::string good_labels = folder.write("labels", labels(3));
  Dataset dataset;
  CHECK(read_dataset(path, good_labels, &dataset) == "");
  const std::string packed = read_all(path);
  std::string damaged = packed;
  damaged[packed.size() - 6] = static_cast<char>(damaged[packed.size() - 6] ^ 1);  // checksum
  for (const std::string& bytes : {packed.substr(0, packed.size() / 2), damaged}) {
    const Error error = read_dataset(folder.write("bad.gz", bytes), good_labels, &dataset);
    CHECK(contains(error, "bad.gz: is "));
  }
}

TEST_CASE("a checkpoint comes back as it was, and replaces an older one") {
  Folder folder;
  const std::string path = folder.write("checkpoint", "old");
  const Checkpoint saved = make_checkpoint();
  REQUIRE(save_checkpoint(path, saved) == "");
  CHECK(access((path + ".part").c_str(), F_OK) != 0);
  Checkpoint loaded;
  REQUIRE(load_checkpoint(path, {2, 1}, &loaded) == "");
  CHECK(loaded.optimizer == saved.optimizer);
  CHECK(loaded.seed == saved.seed);
  CHECK(loaded.position == 2);
  CHECK(loaded.parameters == saved.parameters);
  CHECK(loaded.optimizer_state == saved.optimizer_state);
  CHECK(loaded.history[1].loss == 2);
  CHECK(loaded.evaluations[0].accuracy == 0.75);
}

TEST_CASE("every cut and every changed byte of a checkpoint is an error") {
  Folder folder;
  const std::string path = folder.file("checkpoint");
  REQUIRE(save_checkpoint(path, make_checkpoint()) == "");
  const std::string bytes = read_all(path);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string changed = bytes;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    for (const std::string& bad : {bytes.substr(0, i), changed}) {
      Checkpoint loaded;
      REQUIRE(load_checkpoint(folder.write("bad", bad), {2, 1}, &loaded) != "");
      REQUIRE(loaded.parameters.empty());
    }
  }
}

TEST_CASE("foreign, newer, other and unwritable checkpoints are named") {
  Folder folder;
  const std::string path = folder.file("checkpoint");
  REQUIRE(save_checkpoint(path, make_checkpoint()) == "");
  Checkpoint loaded;
  CHECK(contains(load_checkpoint(folder.write("text", "hello, world"), {2, 1}, &loaded),
                 "text is no checkpoint of this program"));
  CHECK(contains(load_checkpoint(path, {3}, &loaded), "is of another network"));
  CHECK(contains(load_checkpoint(folder.file("absent"), {3}, &loaded),
                 "absent: No such file or directory"));
  std::string newer = read_all(path);
  newer[8] = 2;
  CHECK(contains(load_checkpoint(folder.write("newer", newer), {2, 1}, &loaded),
                 "has version 2, this program reads 1"));
  CHECK(contains(save_checkpoint("/nowhere/at/all", make_checkpoint()),
                 "cannot save checkpoint /nowhere/at/all: No such file or directory"));
}

TEST_CASE("curves are drawn from any history") {
  Folder folder;
  const std::string path = folder.file("curves.png");
  std::vector<StepRecord> history = {{2.3f, 0.1f}};
  CHECK(draw_curves(path, "one step", history, {}) == "");
  history.push_back({1e30f, 1});
  CHECK(draw_curves(path, "wild", history, {{2, 1e300, 0.5}}) == "");
  CHECK(read_all(path).substr(1, 3) == "PNG");
  CHECK(contains(draw_curves("/nowhere/at/all.png", "", history, {}),
                 "cannot write the curves to /nowhere/at/all.png"));
}

TEST_CASE("a batch that cannot be dealt evenly names sizes that can") {
  for (const int64_t ranks : {1, 2, 3, 4}) CHECK(check_batch(120, ranks, 60000) == "");
  CHECK(check_batch(120, 7, 60000) ==
        "--batch 120 cannot be dealt evenly to 7 ranks; choose 119 or 126");
  CHECK(check_batch(2, 3, 60000) == "--batch 2 cannot be dealt evenly to 3 ranks; choose 3");
  CHECK(check_batch(120, 3, 60000, 4) == "");
  CHECK(check_batch(120, 2, 60000, 7) ==
        "--batch 120 cannot be dealt evenly to 2 ranks, in 7 passes each; choose 112 or 126");
  CHECK(contains(check_batch(200, 2, 100), "is more than the 100 training images"));
}
