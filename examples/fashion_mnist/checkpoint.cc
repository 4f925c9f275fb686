// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <type_traits>

namespace fashion {
namespace {

// The file: magic, version, numbers, then arrays each after its length, then the hash of all that.
// Numbers are little-endian, as every machine this runs on.
constexpr char kMagic[8] = {'d', 't', '-', 'f', 'm', 'n', 's', 't'};
constexpr uint32_t kVersion = 1;
constexpr int64_t kMostBytes = int64_t{1} << 30;

class Writer {
 public:
  template <typename T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const auto* bytes = reinterpret_cast<const char*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof value);
  }
  template <typename T>
  void put_all(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(static_cast<int64_t>(values.size()));
    const auto* bytes = reinterpret_cast<const char*>(values.data());
    out_.insert(out_.end(), bytes, bytes + values.size() * sizeof(T));
  }
  const std::vector<char>& bytes() const { return out_; }

 private:
  std::vector<char> out_;
};

/// Refuses to read past the end; a length is checked before memory is asked for.
class Reader {
 public:
  Reader(const char* data, size_t bytes) : cursor_(data), left_(bytes) {}

  template <typename T>
  bool get(T* out) {
    if (left_ < sizeof(T)) return false;
    std::memcpy(out, cursor_, sizeof(T));
    skip(sizeof(T));
    return true;
  }
  template <typename T>
  bool get_all(std::vector<T>* out) {
    int64_t count = 0;
    if (!get(&count) || count < 0 || static_cast<uint64_t>(count) > left_ / sizeof(T)) return false;
    out->resize(static_cast<size_t>(count));
    if (count > 0) std::memcpy(static_cast<void*>(out->data()), cursor_, out->size() * sizeof(T));
    skip(out->size() * sizeof(T));
    return true;
  }
  bool at_end() const { return left_ == 0; }

 private:
  void skip(size_t bytes) {
    cursor_ += bytes;
    left_ -= bytes;
  }
  const char* cursor_;
  size_t left_;
};

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

Error write_synced(const std::string& path, const std::vector<char>& bytes) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (file.get() < 0) return std::strerror(errno);
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = write(file.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return std::strerror(errno);
    done += static_cast<size_t>(got);
  }
  return fsync(file.get()) == 0 ? Error() : std::strerror(errno);
}

Error sync_directory_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  std::string directory = ".";
  if (slash != std::string::npos) directory = slash == 0 ? "/" : path.substr(0, slash);
  const Descriptor handle(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (handle.get() < 0 || fsync(handle.get()) != 0) return std::strerror(errno);
  return {};
}

Error read_file(const std::string& path, std::vector<char>* out) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status;
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    return "cannot read checkpoint " + path + ": " + std::strerror(errno);
  }
  if (!S_ISREG(status.st_mode) || status.st_size > kMostBytes) {
    return path + " is no checkpoint of this program: no regular file of at most 1 GiB";
  }
  out->resize(static_cast<size_t>(status.st_size));
  size_t done = 0;
  while (done < out->size()) {
    const ssize_t got = read(file.get(), out->data() + done, out->size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return "cannot read checkpoint " + path + ": " + std::strerror(errno);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  out->resize(done);
  return {};
}

bool get_body(Reader* reader, Checkpoint* out) {
  return reader->get(&out->optimizer) && reader->get(&out->seed) && reader->get(&out->batch) &&
         reader->get(&out->step) && reader->get(&out->epoch) && reader->get(&out->position) &&
         reader->get_all(&out->shape) && reader->get_all(&out->parameters) &&
         reader->get_all(&out->optimizer_state) && reader->get_all(&out->history) &&
         reader->get_all(&out->evaluations) && reader->at_end();
}

bool is_consistent(const Checkpoint& checkpoint) {
  if (checkpoint.optimizer != OptimizerKind::kSgd &&
      checkpoint.optimizer != OptimizerKind::kAdamW) {
    return false;
  }
  const size_t per_parameter = checkpoint.optimizer == OptimizerKind::kSgd ? 1 : 2;
  const int64_t elements =
      std::accumulate(checkpoint.shape.begin(), checkpoint.shape.end(), int64_t{0});
  return checkpoint.parameters.size() == static_cast<size_t>(elements) &&
         checkpoint.optimizer_state.size() == per_parameter * checkpoint.parameters.size() &&
         checkpoint.batch > 0 && checkpoint.epoch >= 0 && checkpoint.position >= 0 &&
         checkpoint.step >= 0 && checkpoint.history.size() == static_cast<size_t>(checkpoint.step);
}

}  // namespace

uint64_t hash_bytes(const void* data, size_t bytes, uint64_t start) {
  constexpr uint64_t kPrime = 0x100000001b3u;
  const auto* cursor = static_cast<const unsigned char*>(data);
  uint64_t hash = start;
  for (; bytes >= 8; bytes -= 8, cursor += 8) {
    uint64_t word;
    std::memcpy(&word, cursor, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 32;  // a product alone never moves high bits down
  }
  for (; bytes > 0; --bytes, ++cursor) hash = (hash ^ *cursor) * kPrime;
  return hash;
}

std::vector<char> pack_checkpoint(const Checkpoint& checkpoint) {
  Writer writer;
  writer.put(kMagic);
  writer.put(kVersion);
  writer.put(checkpoint.optimizer);
  writer.put(checkpoint.seed);
  writer.put(checkpoint.batch);
  writer.put(checkpoint.step);
  writer.put(checkpoint.epoch);
  writer.put(checkpoint.position);
  writer.put_all(checkpoint.shape);
  writer.put_all(checkpoint.parameters);
  writer.put_all(checkpoint.optimizer_state);
  writer.put_all(checkpoint.history);
  writer.put_all(checkpoint.evaluations);
  writer.put(hash_bytes(writer.bytes().data(), writer.bytes().size()));
  return writer.bytes();
}

Error save_checkpoint(const std::string& path, const Checkpoint& checkpoint) {
  const std::string temporary = path + ".part";
  Error why = write_synced(temporary, pack_checkpoint(checkpoint));
  if (why.empty() && rename(temporary.c_str(), path.c_str()) != 0) why = std::strerror(errno);
  if (why.empty()) why = sync_directory_of(path);
  if (why.empty()) return {};
  unlink(temporary.c_str());
  return "cannot save checkpoint " + path + ": " + why + "; check --save, free space and rights";
}

Error load_checkpoint(const std::string& path, const std::vector<int64_t>& shape, Checkpoint* out) {
  std::vector<char> bytes;
  if (Error error = read_file(path, &bytes); !error.empty()) return error;
  return unpack_checkpoint(bytes, path, shape, out);
}

Error unpack_checkpoint(const std::vector<char>& bytes, const std::string& path,
                        const std::vector<int64_t>& shape, Checkpoint* out) {
  constexpr size_t kHeadBytes = sizeof kMagic + sizeof kVersion;
  if (bytes.size() < sizeof kMagic || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return path + " is no checkpoint of this program; give --resume a file that --save wrote";
  }
  const std::string damaged =
      "checkpoint " + path + " is damaged or cut short; resume from another one or start over";
  if (bytes.size() < kHeadBytes + sizeof(uint64_t)) return damaged;
  uint32_t version = 0;
  std::memcpy(&version, bytes.data() + sizeof kMagic, sizeof version);
  if (version != kVersion) {
    return "checkpoint " + path + " has version " + std::to_string(version) +
           ", this program reads " + std::to_string(kVersion) + "; use the program that wrote it";
  }
  const size_t hashed = bytes.size() - sizeof(uint64_t);
  uint64_t hash = 0;
  std::memcpy(&hash, bytes.data() + hashed, sizeof hash);
  if (hash != hash_bytes(bytes.data(), hashed)) return damaged;

  Checkpoint checkpoint;
  Reader reader(bytes.data() + kHeadBytes, hashed - kHeadBytes);
  if (!get_body(&reader, &checkpoint)) return damaged;
  if (checkpoint.shape != shape) {
    return "checkpoint " + path + " is of another network (" +
           std::to_string(checkpoint.shape.size()) +
           " parameters of other sizes); use the program that wrote it";
  }
  if (!is_consistent(checkpoint)) return damaged;
  *out = std::move(checkpoint);
  return {};
}

}  // namespace fashion
