// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "backend/device/device_backend.h"
#include "backend/host/host_backend.h"
#include "backend/multihost/multihost.h"
#include "backend/nccl/nccl_carrier.h"
#include "backend/self/self.h"
#include "backend/staged/staged_carrier.h"
#include "fake_cuda.h"
#include "fake_kernels.h"
#include "fake_nccl.h"

namespace conformance {
namespace {

constexpr int64_t kJoinMs = 30'000;
constexpr int64_t kOperationMs = 60'000;

std::atomic<uint64_t> next_session{1};

/// Threads meet here any number of times.
class Meeting {
 public:
  explicit Meeting(int32_t size) : size_(size) {}
  void meet() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++present_ == size_) {
      present_ = 0;
      ++round_;
      all_.notify_all();
    } else {
      all_.wait(lock, [&] { return round_ != round; });
    }
  }

 private:
  const int32_t size_;
  std::mutex mutex_;
  std::condition_variable all_;
  int32_t present_ = 0;
  int64_t round_ = 0;
};

float half_to_float(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double value = exponent == 0    ? std::ldexp(mantissa, -24)
                       : exponent == 31 ? (mantissa != 0 ? NAN : INFINITY)
                                        : std::ldexp(1024 + mantissa, exponent - 25);
  return static_cast<float>((bits & 0x8000) != 0 ? -value : value);
}

/// Exact for what tests encode: integers below 2048.
uint16_t half_from_double(double value) {
  if (value == 0) return 0;
  int exponent;
  const double mantissa = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const auto bits =
      static_cast<uint16_t>(((exponent + 14) << 10) + (static_cast<int>(mantissa * 2048) - 1024));
  return static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0));
}

template <class T>
double load(const void* data, int64_t index) {
  T value;
  memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof value),
         sizeof value);
  return static_cast<double>(value);
}

template <class T>
void store(void* data, int64_t index, double value) {
  const T typed = static_cast<T>(value);
  memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof typed), &typed,
         sizeof typed);
}

/// Memory of the kind a placement asks for.
class Buffer {
 public:
  Buffer(const Rank& rank, bool shared, bool misaligned, int64_t bytes)
      : rank_(rank), shared_(shared) {
    const int64_t wanted = std::max<int64_t>(bytes, 1) + 1;
    if (shared) {
      auto memory = rank.backend->allocate(wanted);
      rank.expect_ok(memory.status(), "allocate");
      base_ = memory.ok() ? static_cast<char*>(memory.value()) : nullptr;
    } else {
      base_ = static_cast<char*>(malloc(static_cast<size_t>(wanted)));
    }
    data_ = base_ + (misaligned ? 1 : 0);
  }
  ~Buffer() {
    if (shared_) {
      rank_.expect_ok(rank_.backend->release(base_), "release");
    } else {
      free(base_);
    }
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  char* data() const { return data_; }

 private:
  const Rank& rank_;
  const bool shared_;
  char* base_;
  char* data_;
};

/// Every value below depends on an index modulo this number.
constexpr int64_t kPeriod = 30;

double pattern(Dtype dtype, ReduceOp op, int32_t rank, int32_t size, int64_t index) {
  const int64_t number = rank + size * index;
  if (dtype == Dtype::kBool) return static_cast<double>(number % 3 == 0 ? 0 : 1);
  // Products of eight stay small enough for f16; sums are exact in every type.
  return static_cast<double>(op == ReduceOp::kProd ? number % 2 + 1 : number % 5 + 1);
}

int bits(double value) { return static_cast<int>(value); }

/// The plain loop.
double expected_value(Dtype dtype, ReduceOp op, int32_t size, int64_t index) {
  double result = pattern(dtype, op, 0, size, index);
  for (int32_t rank = 1; rank < size; ++rank) {
    const double value = pattern(dtype, op, rank, size, index);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg: result += value; break;
      case ReduceOp::kProd: result *= value; break;
      case ReduceOp::kMin: result = std::min(result, value); break;
      case ReduceOp::kMax: result = std::max(result, value); break;
      case ReduceOp::kBand: result = bits(result) & bits(value); break;
      case ReduceOp::kBor: result = bits(result) | bits(value); break;
      case ReduceOp::kBxor: result = bits(result) ^ bits(value); break;
      case ReduceOp::kCustom: break;
    }
  }
  const bool integer = dt::is_integer(dtype);
  if (op == ReduceOp::kAvg) result = integer ? std::trunc(result / size) : result / size;
  if (dtype == Dtype::kBool) return result != 0 ? 1 : 0;
  // Bytes wrap: a product of eight twos is 256.
  if (dtype == Dtype::kI8) return static_cast<int8_t>(static_cast<int64_t>(result));
  if (dtype == Dtype::kU8) return static_cast<uint8_t>(static_cast<int64_t>(result));
  return result;
}

/// Repeats the first `period` bytes.
void repeat(char* data, int64_t period, int64_t bytes) {
  for (int64_t at = period; at < bytes; at += period) {
    memcpy(data + at, data, static_cast<size_t>(std::min(period, bytes - at)));
  }
}

double tolerance(Dtype dtype, ReduceOp op) {
  if (op != ReduceOp::kAvg) return 0;
  if (dtype == Dtype::kBf16) return 0.05;
  if (dtype == Dtype::kF16) return 0.01;
  return dtype == Dtype::kF32 || dtype == Dtype::kF64 ? 1e-5 : 0;
}

}  // namespace

Status Rank::run(const Collective& collective) const {
  if (backend->device() == nullptr) return backend->run(collective);
  const auto work = std::make_shared<Work>();
  DT_TRY(backend->submit(collective, work));
  (void)backend->wait(*work, Wait());  // ends: the backend keeps the deadline
  return work->status();
}

void Rank::expect(bool holds, const std::string& what) const {
  if (!holds) failures->push_back(dt::format("rank %d: %s", rank, what.c_str()));
}

void Rank::expect_ok(const Status& status, const std::string& what) const {
  expect(status.ok(), what + ": " + status.message());
}

double decode(Dtype dtype, const void* data, int64_t index) {
  switch (dtype) {
    case Dtype::kI8: return load<int8_t>(data, index);
    case Dtype::kU8: return load<uint8_t>(data, index);
    case Dtype::kI32: return load<int32_t>(data, index);
    case Dtype::kU32: return load<uint32_t>(data, index);
    case Dtype::kI64: return load<int64_t>(data, index);
    case Dtype::kU64: return load<uint64_t>(data, index);
    case Dtype::kI16: return load<int16_t>(data, index);
    case Dtype::kU16: return load<uint16_t>(data, index);
    case Dtype::kBool:
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2: return load<uint8_t>(data, index);
    case Dtype::kF32: return load<float>(data, index);
    case Dtype::kF64: return load<double>(data, index);
    case Dtype::kF16: return half_to_float(static_cast<uint16_t>(load<uint16_t>(data, index)));
    case Dtype::kBf16: {
      const uint32_t bits = static_cast<uint32_t>(load<uint16_t>(data, index)) << 16;
      float value;
      memcpy(&value, &bits, sizeof value);
      return value;
    }
  }
  return NAN;
}

void encode(Dtype dtype, void* data, int64_t index, double value) {
  switch (dtype) {
    case Dtype::kI8: return store<int8_t>(data, index, value);
    case Dtype::kU8: return store<uint8_t>(data, index, value);
    case Dtype::kI32: return store<int32_t>(data, index, value);
    case Dtype::kU32: return store<uint32_t>(data, index, value);
    case Dtype::kI64: return store<int64_t>(data, index, value);
    case Dtype::kU64: return store<uint64_t>(data, index, value);
    case Dtype::kI16: return store<int16_t>(data, index, value);
    case Dtype::kU16: return store<uint16_t>(data, index, value);
    case Dtype::kBool:
    case Dtype::kF8E4M3:
    case Dtype::kF8E5M2: return store<uint8_t>(data, index, value);
    case Dtype::kF32: return store<float>(data, index, value);
    case Dtype::kF64: return store<double>(data, index, value);
    case Dtype::kF16: return store<uint16_t>(data, index, half_from_double(value));
    case Dtype::kBf16: {
      const auto single = static_cast<float>(value);
      uint32_t bits;
      memcpy(&bits, &single, sizeof bits);
      return store<uint16_t>(data, index, bits >> 16);
    }
  }
}

void check_collective(const Rank& rank, Kind kind, Dtype dtype, ReduceOp op, int64_t count,
                      int32_t root, Placement placement) {
  const int32_t size = rank.size;
  const int64_t element = dt::dtype_bytes(dtype);
  const int64_t in = kind == Kind::kReduceScatter ? size * count : count;
  const int64_t out = kind == Kind::kAllgather ? size * count : count;
  const bool odd = placement == Placement::kSomeShared && rank.rank % 2 == 1;
  bool send_shared = placement == Placement::kShared || placement == Placement::kInPlaceShared ||
                     placement == Placement::kSendShared || placement == Placement::kSomeShared;
  bool recv_shared = placement == Placement::kShared || placement == Placement::kInPlaceShared ||
                     placement == Placement::kRecvShared || placement == Placement::kSomeShared;
  if (odd) send_shared = recv_shared = false;
  const bool in_place = placement == Placement::kInPlace ||
                        placement == Placement::kInPlaceShared ||
                        (placement == Placement::kSomeShared && rank.rank % 3 == 0);
  const bool misaligned = placement == Placement::kMisaligned;
  Buffer first(rank, send_shared, misaligned, std::max(in, out) * element);
  Buffer second(rank, recv_shared, misaligned, std::max(in, out) * element);
  char* send = first.data();
  char* recv = second.data();
  if (in_place) {
    send = recv = first.data();
    if (kind == Kind::kAllgather) send += rank.rank * count * element;
    if (kind == Kind::kReduceScatter) recv += rank.rank * count * element;
  }
  for (int64_t i = 0; i < std::min(in, kPeriod); ++i) {
    encode(dtype, send, i, pattern(dtype, op, rank.rank, size, i));
  }
  repeat(send, kPeriod * element, in * element);

  Collective collective;
  collective.kind = kind;
  collective.dtype = dtype;
  collective.op = op;
  collective.root = root;
  collective.send = send;
  collective.recv = recv;
  collective.count = count;
  collective.deadline = Deadline::after_ms(kOperationMs);
  const std::string what = dt::format(
      "%s %s %s x %lld root %d placement %d of %d ranks", dt::kind_name(kind), dtype_name(dtype),
      reduce_op_name(op), static_cast<long long>(count), root, static_cast<int>(placement), size);
  const Status status = rank.run(collective);
  if (!status.ok()) return rank.expect_ok(status, what);
  if (kind == Kind::kReduce && rank.rank != root) return;
  double reduced[kPeriod];
  for (int64_t i = 0; i < kPeriod; ++i) reduced[i] = expected_value(dtype, op, size, i);
  for (int64_t i = 0; i < out; ++i) {
    double wanted = 0;
    switch (kind) {
      case Kind::kBroadcast: wanted = pattern(dtype, op, root, size, i); break;
      case Kind::kAllgather:
        wanted = pattern(dtype, op, static_cast<int32_t>(i / count), size, i % count);
        break;
      case Kind::kReduceScatter: wanted = reduced[(rank.rank * count + i) % kPeriod]; break;
      default: wanted = reduced[i % kPeriod]; break;
    }
    const double found = decode(dtype, recv, i);
    if (std::fabs(found - wanted) <= tolerance(dtype, op) * std::fabs(wanted)) continue;
    rank.expect(false, dt::format("%s: element %lld is %g, not %g", what.c_str(),
                                  static_cast<long long>(i), found, wanted));
    return;
  }
}

Collective allreduce_f32(const float* send, float* recv, int64_t count) {
  Collective collective;
  collective.kind = Kind::kAllreduce;
  collective.dtype = Dtype::kF32;
  collective.send = send;
  collective.recv = recv;
  collective.count = count;
  collective.deadline = Deadline::after_ms(kOperationMs);
  return collective;
}

namespace {

/// What the ranks of a run know of each other before they begin.
struct Scene {
  Scene(const Setup& new_setup)
      : setup(new_setup), session(next_session.fetch_add(1)), meeting(setup.size) {}

  Status prepare();
  std::shared_ptr<Backend> make(const Rank& rank);
  std::shared_ptr<Backend> make_multihost(const Rank& rank, std::shared_ptr<Backend> local);
  std::shared_ptr<Backend> make_device(Rank* rank, std::shared_ptr<Backend> on_host);

  const Setup& setup;
  const uint64_t session;
  Meeting meeting;
  dt::collective::Topology topology;
  std::vector<dt::shm::ArenaListener> listeners;  // by rank
  std::vector<std::string> names;
  std::vector<dt::tcp::Socket> sockets;  // of multihost
  std::vector<dt::tcp::Peer> peers;
};

constexpr int32_t kFirstWorldRank = 100;  // ranks of the job that are not in the communicator

Status Scene::prepare() {
  topology = dt::collective::Topology::of(
      setup.hosts.empty() ? std::vector<int32_t>(static_cast<size_t>(setup.size)) : setup.hosts);
  const bool multihost = !setup.hosts.empty();
  DT_TRY_VALUE(const auto loopback, dt::net::resolve_now("127.0.0.1", 0, true));
  for (int32_t rank = 0; rank < setup.size; ++rank) {
    DT_TRY_VALUE(auto listener, dt::shm::ArenaListener::create());
    names.push_back(listener.name());
    listeners.push_back(std::move(listener));
    if (!multihost) continue;
    DT_TRY_VALUE(auto socket, dt::tcp::listen_on(loopback[0], {}));
    peers.push_back({kFirstWorldRank + rank, dt::format("host%d", topology.host[rank]), getpid(),
                     socket.local()});
    sockets.push_back(std::move(socket));
  }
  return {};
}

std::shared_ptr<Backend> Scene::make(const Rank& rank) {
  const auto& members = topology.hosts[topology.host[rank.rank]];
  dt::backend::HostEngine::Options options = setup.host;
  options.leader_name = names[members[0]];
  options.session = session;
  options.local_rank = topology.local[rank.rank];
  options.local_size = static_cast<int32_t>(members.size());
  options.host = setup.hosts.empty() ? "thishost" : dt::format("host%d", topology.host[rank.rank]);
  if (!setup.nodes.empty()) options.home.node = setup.nodes[rank.rank];
  options.world_ranks.clear();
  for (const int32_t member : members) options.world_ranks.push_back(kFirstWorldRank + member);
  const Wait wait{Deadline::after_ms(kJoinMs)};
  auto engine = dt::backend::HostEngine::create(std::move(listeners[rank.rank]), options, wait);
  rank.expect_ok(engine.status(), "engine");
  if (!engine.ok()) return nullptr;
  dt::backend::HostWorldOptions world;
  world.part = !setup.hosts.empty();
  if (setup.on_broken) {
    world.on_broken = [told = setup.on_broken](const std::string&, const Status& status) {
      told(status);
    };
  }
  auto backend = dt::backend::create_host_world(engine.value(), world, wait);
  rank.expect_ok(backend.status(), "world");
  if (!backend.ok()) return nullptr;
  return setup.hosts.empty() ? backend.value() : make_multihost(rank, backend.value());
}

std::shared_ptr<Backend> Scene::make_multihost(const Rank& rank, std::shared_ptr<Backend> local) {
  dt::tcp::Mesh::Options mesh_options;
  mesh_options.session = session;
  mesh_options.rank = kFirstWorldRank + rank.rank;
  mesh_options.world_size = kFirstWorldRank + setup.size;
  mesh_options.host = dt::format("host%d", topology.host[rank.rank]);
  mesh_options.look_up = [all = peers](const std::vector<int32_t>& ranks, const Wait&) {
    std::vector<dt::tcp::Peer> found;
    for (const int32_t each : ranks) found.push_back(all[each - kFirstWorldRank]);
    return dt::Result<std::vector<dt::tcp::Peer>>(std::move(found));
  };
  auto mesh = dt::tcp::Mesh::start(std::move(sockets[rank.rank]), std::move(mesh_options));
  rank.expect_ok(mesh.status(), "mesh");
  if (!mesh.ok()) return nullptr;
  dt::backend::MultihostOptions options;
  options.roster.name = "world";
  options.roster.rank = rank.rank;
  options.roster.topology = topology;
  for (int32_t i = 0; i < setup.size; ++i) {
    options.roster.world_ranks.push_back(kFirstWorldRank + i);
  }
  for (int32_t i = 0; i < topology.host_count(); ++i) {
    options.roster.host_names.push_back(dt::format("host%d", i));
  }
  options.local = std::static_pointer_cast<dt::backend::HostBackend>(std::move(local));
  options.mesh = std::move(mesh).value();
  options.on_broken = [told = setup.on_broken, keep = setup.on_telling](
                          const std::string&, const Status& status,
                          std::function<void()> handed_over) {
    if (told) told(status);
    if (keep) return keep(std::move(handed_over));
    handed_over();
  };
  auto backend = dt::backend::create_multihost(std::move(options));
  rank.expect_ok(backend.status(), "multihost");
  return backend.ok() ? backend.value() : nullptr;
}

std::shared_ptr<Backend> Scene::make_device(Rank* rank, std::shared_ptr<Backend> on_host) {
  const bool nccl = strcmp(setup.backend, "nccl") == 0;
  auto cuda = std::make_shared<dt::test::FakeCuda>(nccl ? rank->rank : 0);
  rank->cuda = cuda;
  auto engine = dt::backend::DeviceEngine::start({cuda, dt::cuda::StreamPriority::kHigh, nullptr});
  rank->expect_ok(engine.status(), "device engine");
  if (!engine.ok()) return nullptr;
  dt::backend::DeviceOptions options;
  options.name = "world";
  options.rank = rank->rank;
  options.size = rank->size;
  options.self = dt::format("rank %d (thishost)", rank->rank);
  options.engine = engine.value();
  options.on_host = std::move(on_host);
  options.kernels = dt::test::fake_tensor_kernels(cuda);
  options.carries_on_host = !nccl;
  options.backend_name = setup.backend;
  if (setup.on_broken) {
    options.on_broken = [told = setup.on_broken](const std::string&, const Status& status) {
      told(status);
    };
  }
  if (nccl) {
    auto library = dt::nccl::Library::open(DT_FAKE_NCCL);
    rank->expect_ok(library.status(), "library");
    if (!library.ok()) return nullptr;
    options.make_carrier = [device = engine.value()->device_thread(), library = library.value(),
                            kernels = options.kernels, registers = setup.registers](
                               const dt::backend::DeviceOptions::Seat& seat) {
      return dt::backend::make_nccl_carrier(device, {seat.name,
                                                     seat.rank,
                                                     seat.size,
                                                     seat.on_host,
                                                     library,
                                                     {},
                                                     kernels,
                                                     nullptr,
                                                     registers});
    };
  } else {
    options.make_carrier =
        [device = engine.value()->device_thread()](const dt::backend::DeviceOptions::Seat& seat) {
          return dt::backend::make_staged_carrier(device, {seat.rank, seat.size, seat.on_host});
        };
  }
  auto backend = dt::backend::create_device_backend(std::move(options),
                                                    Wait{Deadline::after_ms(setup.open_ms)});
  if (!backend.ok() && setup.on_not_made) {
    setup.on_not_made(rank->rank, backend.status());
    return nullptr;
  }
  rank->expect_ok(backend.status(), "device backend");
  return backend.ok() ? backend.value() : nullptr;
}

}  // namespace

std::vector<std::string> run_ranks(const Setup& setup, const std::function<void(Rank&)>& body) {
  Scene scene(setup);
  const bool self = strcmp(setup.backend, "self") == 0;
  const bool device = strcmp(setup.backend, "nccl") == 0 || strcmp(setup.backend, "staged") == 0;
  if (device) {
    dt::test::FakeNccl* const fake = dt::test::fake_nccl(DT_FAKE_NCCL);
    fake->set_enqueue(dt::test::FakeCuda::enqueue);
  }
  if (const Status status = scene.prepare(); !status.ok()) return {status.message()};
  std::vector<std::vector<std::string>> failures(setup.size);
  const auto play = [&](int32_t index) {
    Rank rank;
    rank.rank = index;
    rank.size = setup.size;
    rank.failures = &failures[index];
    rank.meet = [&] { scene.meeting.meet(); };
    rank.backend = self ? dt::backend::create_self("world") : scene.make(rank);
    if (device && rank.backend != nullptr) rank.backend = scene.make_device(&rank, rank.backend);
    if (rank.backend != nullptr) body(rank);
  };
  std::vector<std::thread> threads;
  for (int32_t rank = 1; rank < setup.size; ++rank) threads.emplace_back(play, rank);
  play(0);
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> all;
  for (const auto& list : failures) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace conformance
