// SPDX-License-Identifier: Apache-2.0
#include "record/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <type_traits>
#include <utility>

#include "base/world_size.h"

namespace dt::record {
namespace {

constexpr std::string_view kSuffix = ".dttrace";
constexpr std::string_view kPrefix = "rank-";
constexpr size_t kFrameBytes = 8 + 4 + 8 + 8;  // magic, version, length, checksum
constexpr size_t kEntryBytes = 68;             // without the label
constexpr size_t kNameBytes = 1 << 10;
constexpr size_t kMessageBytes = 16 << 10;
constexpr int64_t kMaxRanksOfAll = 4 << 20;  // ranks that all communicators of a file may name
constexpr int64_t kMaxNumber = int64_t{1}
                               << 61;  // of times, counts and bytes: sums do not overflow

uint64_t checksum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char byte : bytes) {
    hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  }
  return hash;
}

class Sink {
 public:
  template <class T>
  Sink& put(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<char>(bits >> (8 * i)));
    return *this;
  }
  Sink& text(std::string_view value, size_t max_bytes) {
    value = value.substr(0, max_bytes);
    put(static_cast<uint32_t>(value.size()));
    bytes_.append(value);
    return *this;
  }
  Sink& raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  std::string take() { return std::move(bytes_); }
  const std::string& bytes() const { return bytes_; }
  void reserve(size_t bytes) { bytes_.reserve(bytes); }

 private:
  std::string bytes_;
};

/// After the first thing that is not as it should be everything is zero, and done() is false.
class Source {
 public:
  explicit Source(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T get() {
    if (!ok_ || rest_.size() < sizeof(T)) {
      ok_ = false;
      return {};
    }
    std::make_unsigned_t<T> bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= static_cast<decltype(bits)>(static_cast<unsigned char>(rest_[i])) << (8 * i);
    }
    rest_.remove_prefix(sizeof(T));
    return static_cast<T>(bits);
  }
  template <class T>
  T within(T low, T high) {
    const T value = get<T>();
    if (value >= low && value <= high) return value;
    ok_ = false;
    return {};
  }
  /// Bytes that a terminal may act on are replaced.
  std::string text(size_t max_bytes) {
    const size_t bytes = get<uint32_t>();
    if (!ok_ || bytes > max_bytes || bytes > rest_.size()) {
      ok_ = false;
      return {};
    }
    std::string value(rest_.substr(0, bytes));
    rest_.remove_prefix(bytes);
    for (char& byte : value) {
      if (static_cast<unsigned char>(byte) < ' ' || byte == 0x7f) byte = '?';
    }
    return value;
  }
  size_t items(size_t min_bytes) {
    const size_t count = get<uint32_t>();
    if (ok_ && count <= rest_.size() / min_bytes) return count;
    ok_ = false;
    return 0;
  }
  void fail() { ok_ = false; }
  bool ok() const { return ok_; }
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

/// Runs of ranks that follow each other: {first, length}.
void put_ranks(Sink* sink, const std::vector<int32_t>& ranks) {
  std::vector<std::pair<int32_t, int32_t>> runs;
  for (const int32_t rank : ranks) {
    if (!runs.empty() && runs.back().first + runs.back().second == rank) {
      ++runs.back().second;
    } else {
      runs.push_back({rank, 1});
    }
  }
  sink->put(static_cast<uint32_t>(runs.size()));
  for (const auto& [first, length] : runs) sink->put(first).put(length);
}

std::vector<int32_t> get_ranks(Source* source, int32_t world_size, int64_t* budget) {
  std::vector<int32_t> ranks;
  const size_t runs = source->items(2 * sizeof(int32_t));
  for (size_t i = 0; i < runs && source->ok(); ++i) {
    const auto first = source->within<int32_t>(0, world_size - 1);
    const auto length = source->within<int32_t>(1, world_size - first);
    *budget -= length;
    if (*budget < 0) source->fail();
    for (int32_t rank = first; source->ok() && rank < first + length; ++rank) ranks.push_back(rank);
  }
  return ranks;
}

void put_entry(Sink* sink, const Entry& entry, uint32_t communicator) {
  sink->put(communicator).put(entry.kind).put(entry.dtype).put(entry.op);
  sink->put(static_cast<uint8_t>(entry.state)).put(entry.root);
  sink->put(static_cast<int32_t>(entry.status)).put(entry.position).put(entry.count);
  sink->put(entry.bytes).put(entry.enqueued_ns).put(entry.started_ns).put(entry.completed_ns);
  sink->text(entry.label, kNameBytes);
}

constexpr uint32_t kLeftOut = UINT32_MAX;

/// The number of each communicator in the file, or kLeftOut. The reader takes kMaxRanksOfAll at
/// most, so beyond that those that have ended and have no entry are left out.
std::vector<uint32_t> number_communicators(const Recorded& recorded) {
  std::vector<uint32_t> numbers(recorded.communicators.size(), kLeftOut);
  for (const Entry& entry : recorded.entries) numbers[entry.communicator] = 0;
  const auto must = [&](size_t i) {
    return numbers[i] != kLeftOut || !recorded.communicators[i].ended;
  };
  int64_t ranks = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (must(i)) ranks += std::ssize(recorded.communicators[i].world_ranks);
  }
  // The newest first.
  for (size_t i = numbers.size(); i-- > 0;) {
    if (must(i)) {
      numbers[i] = 0;
      continue;
    }
    const int64_t more = std::ssize(recorded.communicators[i].world_ranks);
    if (ranks + more > kMaxRanksOfAll) continue;
    ranks += more;
    numbers[i] = 0;
  }
  uint32_t next = 0;
  for (uint32_t& number : numbers) {
    if (number != kLeftOut) number = next++;
  }
  return numbers;
}

Entry get_entry(Source* source, size_t communicators) {
  Entry entry;
  entry.communicator = source->get<uint32_t>();
  if (entry.communicator >= communicators) source->fail();
  entry.kind = source->get<uint8_t>();
  entry.dtype = source->get<uint8_t>();
  entry.op = source->get<uint8_t>();
  entry.state = static_cast<State>(source->within<uint8_t>(0, static_cast<uint8_t>(State::kDone)));
  entry.root = source->within<int32_t>(-1, kMaxWorldSize);
  entry.status = static_cast<Code>(source->get<int32_t>());
  for (int64_t* number : {&entry.position, &entry.count, &entry.bytes, &entry.enqueued_ns,
                          &entry.started_ns, &entry.completed_ns}) {
    *number = source->within<int64_t>(0, kMaxNumber);
  }
  entry.label = source->text(kNameBytes);
  return entry;
}

void put_failure(Sink* sink, const Trace& trace) {
  const ErrorInfo& failure = trace.failure;
  sink->put(static_cast<int32_t>(failure.code)).text(failure.message, kMessageBytes);
  sink->put(failure.rank).text(failure.host, kNameBytes).put(failure.pid);
  sink->text(failure.operation, kNameBytes).put(failure.sequence);
  sink->text(trace.failure_scope, kNameBytes).put(trace.failure_realtime_ns);
}

void get_failure(Source* source, Trace* trace) {
  ErrorInfo& failure = trace->failure;
  failure.code = static_cast<Code>(source->get<int32_t>());
  failure.message = source->text(kMessageBytes);
  failure.rank = source->within<int32_t>(-1, kMaxWorldSize);
  failure.host = source->text(kNameBytes);
  failure.pid = source->get<int64_t>();
  failure.operation = source->text(kNameBytes);
  failure.sequence = source->get<int64_t>();
  trace->failure_scope = source->text(kNameBytes);
  trace->failure_realtime_ns = source->within<int64_t>(0, kMaxNumber);
}

bool get_payload(Source source, Trace* trace) {
  Identity& identity = trace->identity;
  identity.job_id = source.text(kNameBytes);
  identity.attempt = source.get<int32_t>();
  identity.session = source.get<uint64_t>();
  identity.world_size = source.within<int32_t>(1, kMaxWorldSize);
  identity.rank = source.within<int32_t>(0, std::max(identity.world_size - 1, 0));
  identity.host = source.text(kNameBytes);
  identity.pid = source.get<int64_t>();
  trace->reason = static_cast<Reason>(source.within<uint8_t>(0, 2));
  get_failure(&source, trace);
  Recorded& recorded = trace->recorded;
  recorded.dropped = source.within<int64_t>(0, kMaxNumber);
  recorded.monotonic_ns = source.within<int64_t>(0, kMaxNumber);
  recorded.realtime_ns = source.within<int64_t>(0, kMaxNumber);
  int64_t budget = kMaxRanksOfAll;
  const size_t communicators = source.items(4 + 4 + 8 + 2 + 4);
  for (size_t i = 0; i < communicators && source.ok(); ++i) {
    CommunicatorRecord& each = recorded.communicators.emplace_back();
    each.name = source.text(kNameBytes);
    each.rank = source.within<int32_t>(0, kMaxWorldSize);
    each.issued = source.within<int64_t>(0, kMaxNumber);
    each.on_device = source.within<uint8_t>(0, 1) != 0;
    each.ended = source.within<uint8_t>(0, 1) != 0;
    each.world_ranks = get_ranks(&source, identity.world_size, &budget);
    if (static_cast<size_t>(each.rank) >= each.world_ranks.size()) source.fail();
  }
  const size_t entries = source.items(kEntryBytes);
  for (size_t i = 0; i < entries && source.ok(); ++i) {
    recorded.entries.push_back(get_entry(&source, communicators));
  }
  return source.done();
}

Status unreadable(const std::string& why) { return Status(Code::kConfig, why); }

/// Closes at the end of its life.
struct OpenFile {
  explicit OpenFile(int number) : fd(number) {}
  ~OpenFile() {
    if (fd >= 0) close(fd);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  /// False, and errno: what was written may be lost. Servers of files and quotas say so only now.
  bool close_written() { return close(std::exchange(fd, -1)) == 0 || errno == EINTR; }
  int fd;
};

bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::string trace_file_name(int32_t rank, int32_t attempt) {
  const std::string later = attempt > 0 ? format(".attempt-%d", attempt) : "";
  return format("%s%05d%s%s", kPrefix.data(), rank, later.c_str(), kSuffix.data());
}

bool is_trace_file_name(std::string_view name) {
  return name.size() > kPrefix.size() + kSuffix.size() &&
         name.substr(0, kPrefix.size()) == kPrefix &&
         name.substr(name.size() - kSuffix.size()) == kSuffix;
}

std::string encode(const Trace& trace) {
  Sink payload;
  payload.reserve(trace.recorded.entries.size() * (kEntryBytes + 16) + kMessageBytes);
  const Identity& identity = trace.identity;
  payload.text(identity.job_id, kNameBytes).put(identity.attempt).put(identity.session);
  payload.put(identity.world_size).put(identity.rank).text(identity.host, kNameBytes);
  payload.put(identity.pid).put(static_cast<uint8_t>(trace.reason));
  put_failure(&payload, trace);
  const Recorded& recorded = trace.recorded;
  payload.put(recorded.dropped).put(recorded.monotonic_ns).put(recorded.realtime_ns);
  const std::vector<uint32_t> numbers = number_communicators(recorded);
  payload.put(static_cast<uint32_t>(
      numbers.size() - static_cast<size_t>(std::count(numbers.begin(), numbers.end(), kLeftOut))));
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == kLeftOut) continue;
    const CommunicatorRecord& each = recorded.communicators[i];
    payload.text(each.name, kNameBytes).put(each.rank).put(each.issued);
    payload.put(uint8_t{each.on_device}).put(uint8_t{each.ended});
    put_ranks(&payload, each.world_ranks);
  }
  payload.put(static_cast<uint32_t>(recorded.entries.size()));
  for (const Entry& entry : recorded.entries)
    put_entry(&payload, entry, numbers[entry.communicator]);
  Sink file;
  file.reserve(payload.bytes().size() + kFrameBytes);
  file.raw(kTraceMagic).put(kTraceVersion).put(uint64_t{payload.bytes().size()});
  file.raw(payload.bytes());
  file.put(checksum(file.bytes()));
  return file.take();
}

Result<Trace> decode_trace(std::string_view bytes) {
  if (bytes.substr(0, kTraceMagic.size()) != kTraceMagic) {
    return unreadable("it is no trace of dt: its first bytes are others");
  }
  if (bytes.size() < kFrameBytes) {
    return unreadable(format("it is cut off: %zu bytes", bytes.size()));
  }
  Source head(bytes.substr(kTraceMagic.size()));
  const auto version = head.get<uint32_t>();
  const auto payload_bytes = head.get<uint64_t>();
  if (version != kTraceVersion) {
    return unreadable(
        format("its format has version %u, this dt reads %u; use the dt that wrote it", version,
               kTraceVersion));
  }
  if (payload_bytes != bytes.size() - kFrameBytes) {
    return unreadable(format("it has %zu bytes where its header says %llu: cut off, or damaged",
                             bytes.size(),
                             static_cast<unsigned long long>(payload_bytes) + kFrameBytes));
  }
  const std::string_view body = bytes.substr(0, bytes.size() - sizeof(uint64_t));
  if (Source(bytes.substr(body.size())).get<uint64_t>() != checksum(body)) {
    return unreadable("its checksum is wrong: damaged");
  }
  Trace trace;
  if (!get_payload(Source(body.substr(kTraceMagic.size() + sizeof version + sizeof payload_bytes)),
                   &trace)) {
    return unreadable("its contents make no sense, although the checksum is right");
  }
  return trace;
}

Result<std::string> write_trace(const std::string& directory, const Trace& trace) {
  const auto failed = [&](const std::string& what, const std::string& why) {
    return Status(Code::kSystem, format("trace of rank %d (host %s): cannot %s: %s; choose another "
                                        "directory (trace.dir)",
                                        trace.identity.rank, trace.identity.host.c_str(),
                                        what.c_str(), why.c_str()));
  };
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return failed("make " + directory, error.message());
  const std::string name = trace_file_name(trace.identity.rank, trace.identity.attempt);
  const std::string path = directory + "/" + name;
  const std::string temporary =
      format("%s/.%s.%d.%d", directory.c_str(), name.c_str(), int{getpid()}, int{gettid()});
  const std::string bytes = encode(trace);
  // In a directory that others share, the name may be a link of theirs to a file of ours.
  unlink(temporary.c_str());
  {
    OpenFile file(
        open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (file.fd < 0) return failed("make " + temporary, errno_text(errno));
    if (!write_all(file.fd, bytes) || !file.close_written()) {
      const std::string why = errno_text(errno);
      unlink(temporary.c_str());
      return failed("write " + temporary, why);
    }
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string why = errno_text(errno);
    unlink(temporary.c_str());
    return failed("rename " + temporary, why);
  }
  return path;
}

Result<Trace> read_trace(const std::string& path) {
  const auto failed = [&](const std::string& why) {
    return Status(Code::kConfig, path + ": " + why);
  };
  const OpenFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat facts {};
  if (file.fd < 0 || fstat(file.fd, &facts) != 0) return failed(errno_text(errno));
  if (!S_ISREG(facts.st_mode)) return failed("it is no ordinary file");
  if (static_cast<size_t>(facts.st_size) > kMaxTraceBytes) {
    return failed(format("it has %lld bytes, more than any trace (%zu)",
                         static_cast<long long>(facts.st_size), kMaxTraceBytes));
  }
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  size_t have = 0;
  while (have < bytes.size()) {
    const ssize_t got = read(file.fd, bytes.data() + have, bytes.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return failed(errno_text(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  bytes.resize(have);
  Result<Trace> trace = decode_trace(bytes);
  return trace.ok() ? std::move(trace) : Result<Trace>(failed(trace.status().message()));
}

}  // namespace dt::record
