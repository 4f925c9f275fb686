// SPDX-License-Identifier: Apache-2.0
// Random jobs for SOAK_SECONDS (10), from SOAK_SEED (1) on: 1 to 5 hosts with local ranks in any
// order, operations of all kinds, types and memory, blocking, under way and in groups, on the world
// and on parts of it, any of them the first; at the end now and then a rank that leaves or is lost.
// Each element is compared with a plain computation. A failure says its seed: SOAK_SEED=SEED
// SOAK_SECONDS=0 repeats that job alone.
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "thread_ranks.h"

namespace dt_test::soak_test {

namespace {

using Random = std::mt19937;

int64_t draw(Random& random, int64_t below) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(below));
}

// ---- elements ----

size_t bytes_of(dt_dtype dtype) {
  static constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8, 1, 2, 2, 1, 1};
  return kBytes[dtype];
}

bool is_float(dt_dtype dtype) { return dtype >= DT_F16 && dtype <= DT_F64; }

template <class T>
void put_as(std::byte* to, double value) {
  const T typed = static_cast<T>(value);
  memcpy(to, &typed, sizeof typed);
}

template <class T>
double get_as(const std::byte* from) {
  T typed;
  memcpy(&typed, from, sizeof typed);
  return static_cast<double>(typed);
}

/// A small whole number, which each type holds exactly.
void put(std::byte* to, dt_dtype dtype, double value) {
  switch (dtype) {
    case DT_I8: return put_as<int8_t>(to, value);
    case DT_I16: return put_as<int16_t>(to, value);
    case DT_U16: return put_as<uint16_t>(to, value);
    case DT_I32: return put_as<int32_t>(to, value);
    case DT_U32: return put_as<uint32_t>(to, value);
    case DT_I64: return put_as<int64_t>(to, value);
    case DT_U64: return put_as<uint64_t>(to, value);
    case DT_F16: {
      if (value == 0) return put_as<uint16_t>(to, 0);
      int exponent = 0;
      const double fraction = std::frexp(value, &exponent);  // in [0.5, 1)
      const auto mantissa = static_cast<uint16_t>((2 * fraction - 1) * 1024);
      return put_as<uint16_t>(to, ((exponent + 14) << 10) + mantissa);
    }
    case DT_BF16: {
      std::array<std::byte, 4> whole;
      put_as<float>(whole.data(), value);
      memcpy(to, whole.data() + 2, 2);
      return;
    }
    case DT_F32: return put_as<float>(to, value);
    case DT_F64: return put_as<double>(to, value);
    default: return put_as<uint8_t>(to, value);  // also 8-bit floats, which are only moved
  }
}

double get(const std::byte* from, dt_dtype dtype) {
  switch (dtype) {
    case DT_I8: return get_as<int8_t>(from);
    case DT_I16: return get_as<int16_t>(from);
    case DT_U16: return get_as<uint16_t>(from);
    case DT_I32: return get_as<int32_t>(from);
    case DT_U32: return get_as<uint32_t>(from);
    case DT_I64: return get_as<int64_t>(from);
    case DT_U64: return get_as<uint64_t>(from);
    case DT_F16: {
      const auto bits = static_cast<int>(get_as<uint16_t>(from));
      const int exponent = bits >> 10 & 31;
      return exponent == 0 ? std::ldexp(bits & 1023, -24)
                           : std::ldexp(1024 + (bits & 1023), exponent - 25);
    }
    case DT_BF16: {
      std::array<std::byte, 4> whole = {};
      memcpy(whole.data() + 2, from, 2);
      return get_as<float>(whole.data());
    }
    case DT_F32: return get_as<float>(from);
    case DT_F64: return get_as<double>(from);
    default: return get_as<uint8_t>(from);
  }
}

// ---- what all ranks know ----

enum class Kind {
  kAllreduce,
  kReduce,
  kBroadcast,
  kAllgather,
  kReduceScatter,
  kReduceScatterv,
  kAlltoall,
  kAlltoallv,
  kGather,
  kGatherv,
  kScatter,
  kScatterv,
  kAllgatherv,
  kBarrier,
  kRing,
  kCount
};

bool is_reducing(Kind kind) {
  return kind == Kind::kAllreduce || kind == Kind::kReduce || kind == Kind::kReduceScatter ||
         kind == Kind::kReduceScatterv;
}

constexpr size_t kMemoryBytes = 1 << 20;  // of a buffer from dt_mem_alloc()

struct Operation {
  Kind kind = Kind::kBarrier;
  dt_dtype dtype = DT_F32;
  dt_reduce_op op = DT_SUM;
  int64_t count = 0;
  uint32_t salt = 0;
  bool in_place = false;
  bool waits = true;

  /// Of rank `from` for rank `to`, which is 0 where all get the same.
  double value(int from, int to, int64_t index) const {
    const uint32_t mixed = (salt + 7u * static_cast<uint32_t>(from) +
                            13u * static_cast<uint32_t>(to) + static_cast<uint32_t>(index)) *
                           2654435761u;
    if (dtype == DT_BOOL) return mixed >> 31;
    return op == DT_PROD ? 1 + (mixed >> 30 == 0 ? 1 : 0) : mixed >> 30;  // 1 or 2; 0 to 3
  }
  int64_t uneven(int from, int to) const {
    return count == 0 ? 0
                      : (salt + 3u * static_cast<uint32_t>(from) + static_cast<uint32_t>(to)) %
                            static_cast<uint32_t>(2 * count);
  }
  double reduced(int size, int64_t index) const {
    double result = value(0, 0, index);
    for (int rank = 1; rank < size; ++rank) {
      const double next = value(rank, 0, index);
      if (op == DT_PROD) result *= next;
      if (op == DT_SUM || op == DT_AVG) result += next;
      if (op == DT_MIN) result = std::min(result, next);
      if (op == DT_MAX) result = std::max(result, next);
      const auto a = static_cast<int>(result);
      const auto b = static_cast<int>(next);
      if (op == DT_BAND) result = a & b;
      if (op == DT_BOR) result = a | b;
      if (op == DT_BXOR) result = a ^ b;
    }
    if (op == DT_AVG) result = is_float(dtype) ? result / size : std::floor(result / size);
    // Eight twos: an 8-bit integer wraps, as it does while it is multiplied.
    if (dtype == DT_I8 || dtype == DT_U8) {
      const int wrapped = static_cast<int>(result) & 255;
      return dtype == DT_I8 && wrapped > 127 ? wrapped - 256 : wrapped;
    }
    return result;
  }
};

Operation draw_operation(Random& random) {
  static constexpr int64_t kCounts[] = {0, 1, 3, 64, 1000, 4097, 8191};
  Operation operation;
  operation.kind = static_cast<Kind>(draw(random, static_cast<int64_t>(Kind::kCount)));
  operation.dtype = static_cast<dt_dtype>(draw(random, DT_F8E5M2 + 1));
  operation.op = static_cast<dt_reduce_op>(draw(random, DT_BXOR + 1));
  if (is_float(operation.dtype) && operation.op >= DT_BAND) operation.op = DT_SUM;
  if (is_reducing(operation.kind)) {
    if (operation.dtype == DT_BOOL && operation.op < DT_BAND) operation.op = DT_BOR;
    if (operation.dtype >= DT_F8E4M3) operation.dtype = DT_U8;
  }
  operation.count = kCounts[draw(random, std::size(kCounts))];
  operation.salt = static_cast<uint32_t>(random());
  operation.in_place = draw(random, 3) == 0;
  operation.waits = draw(random, 3) != 0;
  return operation;
}

/// The ranks of the world in a communicator, by their rank there.
using Members = std::vector<int>;

struct Part {
  int colors = 1;
  uint32_t salt = 0;
  int color_of(int rank) const {
    return static_cast<int>((salt + static_cast<uint32_t>(rank) * 5u) %
                            static_cast<uint32_t>(colors));
  }
  int key_of(int rank) const { return static_cast<int>((salt >> 8) + 3u * unsigned(rank)) % 7; }
  Members members_with(int rank, int world_size) const {
    Members members;
    for (int each = 0; each < world_size; ++each) {
      if (color_of(each) == color_of(rank)) members.push_back(each);
    }
    std::stable_sort(members.begin(), members.end(),
                     [this](int a, int b) { return key_of(a) < key_of(b); });
    return members;
  }
};

// ---- a rank ----

/// Bytes that stay until the operation has ended and was looked at.
struct Buffer {
  std::vector<std::byte> own;
  std::byte* data = nullptr;
};

class Walker {
 public:
  explicit Walker(const Rank& rank) : rank_(rank) {}
  ~Walker() {
    // After a failure dt may still use what is under way.
    if (!pending_.empty()) new std::vector<Pending>(std::move(pending_));
    for (dt_comm* part : parts_) dt_comm_destroy(part);
  }
  Walker(const Walker&) = delete;
  Walker& operator=(const Walker&) = delete;

  std::string why;  ///< of DT_ERR_INTERNAL

  /// `random` gives the same on all ranks.
  dt_status walk(Random& random, int steps) {
    Random own(static_cast<uint32_t>(random()) + static_cast<uint32_t>(rank_.rank));
    members_.resize(static_cast<size_t>(rank_.world_size));
    for (int rank = 0; rank < rank_.world_size; ++rank) members_[size_t(rank)] = rank;
    comms_ = {{rank_.world, members_}};
    for (int step = 0; step < steps; ++step) {
      if (draw(random, 12) == 0) RANK_TRY(split(random));
      const size_t where = static_cast<size_t>(draw(random, static_cast<int64_t>(comms_.size())));
      const int64_t together = draw(random, 8) == 0 ? 1 + draw(random, 4) : 0;
      if (together == 0) {
        RANK_TRY(issue(comms_[where], draw_operation(random), own));
      } else {
        RANK_TRY(dt_group_begin(comms_[where].first));
        for (int64_t i = 0; i < together; ++i) {
          Operation operation = draw_operation(random);
          operation.waits = false;
          RANK_TRY(issue(comms_[where], operation, own));
        }
        RANK_TRY(dt_group_end(comms_[where].first, nullptr));
      }
      const bool looks = draw(random, 4) == 0;
      if (looks || pending_.size() > 4) RANK_TRY(settle());
    }
    return settle();
  }

 private:
  using Comm = std::pair<dt_comm*, Members>;
  struct Pending {
    std::vector<dt_work*> works;
    std::vector<std::shared_ptr<Buffer>> buffers;
    std::function<dt_status()> check;
  };

  dt_status split(Random& random) {
    const Part part{1 + static_cast<int>(draw(random, 3)), static_cast<uint32_t>(random())};
    dt_comm* comm = nullptr;
    RANK_TRY(dt_comm_split(rank_.world, part.color_of(rank_.rank), part.key_of(rank_.rank), &comm));
    parts_.push_back(comm);
    comms_.emplace_back(comm, part.members_with(rank_.rank, rank_.world_size));
    return DT_OK;
  }

  /// From the heap at any place, or shared with the other ranks of the host.
  dt_status make(size_t bytes, Random& own, std::shared_ptr<Buffer>* out) {
    auto buffer = std::shared_ptr<Buffer>(new Buffer, [world = rank_.world](Buffer* gone) {
      if (gone->own.empty()) dt_mem_free(world, gone->data);
      delete gone;
    });
    if (bytes <= kMemoryBytes && bytes > 0 && draw(own, 3) == 0) {
      void* memory = nullptr;
      buffer->own.resize(1);  // if that fails
      RANK_TRY(dt_mem_alloc(rank_.world, static_cast<int64_t>(bytes), &memory));
      buffer->own.clear();
      buffer->data = static_cast<std::byte*>(memory);
    } else {
      const size_t at = 8 * static_cast<size_t>(draw(own, 9));
      buffer->own.resize(bytes + at + 1);
      buffer->data = buffer->own.data() + at;
    }
    memset(buffer->data, 0x55, bytes);
    *out = std::move(buffer);
    return DT_OK;
  }

  dt_status issue(const Comm& where, const Operation& o, Random& own) {
    const auto& [comm, members] = where;
    const int size = static_cast<int>(members.size());
    const int me =
        static_cast<int>(std::find(members.begin(), members.end(), rank_.rank) - members.begin());
    if (o.kind == Kind::kRing && size == 1) return DT_OK;  // no rank sends to itself
    const int root = static_cast<int>(o.salt % static_cast<uint32_t>(size));
    const size_t width = bytes_of(o.dtype);
    // How many elements this rank sends to each and gets from each.
    std::vector<int64_t> gives(static_cast<size_t>(size));
    std::vector<int64_t> takes(gives.size());
    const bool reduces = is_reducing(o.kind);
    const bool one_sent = reduces || o.kind == Kind::kBroadcast || o.kind == Kind::kAllgather ||
                          o.kind == Kind::kAllgatherv;  // the same to all
    for (int peer = 0; peer < size; ++peer) {
      int64_t& give = gives[size_t(peer)];
      int64_t& take = takes[size_t(peer)];
      switch (o.kind) {
        case Kind::kAlltoall: give = take = o.count; break;
        case Kind::kAlltoallv: give = o.uneven(me, peer), take = o.uneven(peer, me); break;
        case Kind::kGather:
          give = peer == root ? o.count : 0, take = me == root ? o.count : 0;
          break;
        case Kind::kGatherv:
          give = peer == root ? o.uneven(me, 0) : 0, take = me == root ? o.uneven(peer, 0) : 0;
          break;
        case Kind::kScatter:
          give = me == root ? o.count : 0, take = peer == root ? o.count : 0;
          break;
        case Kind::kScatterv:
          give = me == root ? o.uneven(peer, 0) : 0, take = peer == root ? o.uneven(me, 0) : 0;
          break;
        case Kind::kAllgather: take = o.count, give = peer == 0 ? o.count : 0; break;
        case Kind::kAllgatherv:
          take = o.uneven(peer, 0), give = peer == 0 ? o.uneven(me, 0) : 0;
          break;
        case Kind::kReduceScatter: give = o.count, take = peer == 0 ? o.count : 0; break;
        case Kind::kReduceScatterv:
          give = o.uneven(peer, 0), take = peer == 0 ? o.uneven(me, 0) : 0;
          break;
        case Kind::kBarrier: break;
        case Kind::kRing:
          give = peer == (me + 1) % size ? o.count : 0;
          take = peer == (me + size - 1) % size ? o.count : 0;
          break;
        default: give = take = peer == 0 ? o.count : 0;  // allreduce, reduce, broadcast
      }
    }
    const auto sum = [](const std::vector<int64_t>& counts) {
      int64_t total = 0;
      for (const int64_t count : counts) total += count;
      return static_cast<size_t>(total);
    };
    std::vector<int64_t> give_at(gives.size());
    std::vector<int64_t> take_at(gives.size());
    for (size_t peer = 1; peer < gives.size(); ++peer) {
      give_at[peer] = give_at[peer - 1] + gives[peer - 1];
      take_at[peer] = take_at[peer - 1] + takes[peer - 1];
    }
    Pending pending;
    std::shared_ptr<Buffer> send;
    std::shared_ptr<Buffer> recv;
    RANK_TRY(make(sum(gives) * width, own, &send));
    RANK_TRY(make(sum(takes) * width, own, &recv));
    pending.buffers = {send, recv};
    int64_t at = 0;
    for (int peer = 0; peer < size; ++peer) {
      for (int64_t i = 0; i < gives[size_t(peer)]; ++i, ++at) {
        const int64_t index = one_sent ? at : i;
        put(send->data + size_t(at) * width, o.dtype, o.value(me, one_sent ? 0 : peer, index));
      }
    }
    std::byte* from = send->data;
    std::byte* const to = recv->data;
    if (o.in_place && (o.kind == Kind::kAllreduce || o.kind == Kind::kReduce)) {
      memcpy(to, from, sum(gives) * width);
      from = to;
    }
    if (o.in_place && o.kind == Kind::kAllgather) {
      std::byte* const mine = to + size_t(me) * size_t(o.count) * width;
      memcpy(mine, from, sum(gives) * width);
      from = mine;
    }
    if (o.kind == Kind::kBroadcast && me == root) memcpy(to, from, sum(gives) * width);
    dt_work* work = nullptr;
    dt_work** const out = o.waits ? nullptr : &work;
    const int64_t count = o.count;
    switch (o.kind) {
      case Kind::kAllreduce:
        RANK_TRY(dt_allreduce(comm, from, to, count, o.dtype, o.op, nullptr, out));
        break;
      case Kind::kReduce:
        RANK_TRY(dt_reduce(comm, from, to, count, o.dtype, o.op, root, nullptr, out));
        break;
      case Kind::kBroadcast:
        RANK_TRY(dt_broadcast(comm, to, count, o.dtype, root, nullptr, out));
        break;
      case Kind::kAllgather:
        RANK_TRY(dt_allgather(comm, from, to, count, o.dtype, nullptr, out));
        break;
      case Kind::kReduceScatter:
        RANK_TRY(dt_reduce_scatter(comm, from, to, count, o.dtype, o.op, nullptr, out));
        break;
      case Kind::kReduceScatterv:
        RANK_TRY(dt_reduce_scatterv(comm, from, gives.data(), give_at.data(), to, o.dtype, o.op,
                                    nullptr, out));
        break;
      case Kind::kAlltoall:
        RANK_TRY(dt_alltoall(comm, from, to, count, o.dtype, nullptr, out));
        break;
      case Kind::kAlltoallv:
        RANK_TRY(dt_alltoallv(comm, from, gives.data(), give_at.data(), to, takes.data(),
                              take_at.data(), o.dtype, nullptr, out));
        break;
      case Kind::kGather:
        RANK_TRY(dt_gather(comm, from, to, count, o.dtype, root, nullptr, out));
        break;
      case Kind::kGatherv:
        RANK_TRY(dt_gatherv(comm, from, o.uneven(me, 0), to, takes.data(), take_at.data(), o.dtype,
                            root, nullptr, out));
        break;
      case Kind::kScatter:
        RANK_TRY(dt_scatter(comm, from, to, count, o.dtype, root, nullptr, out));
        break;
      case Kind::kScatterv:
        RANK_TRY(dt_scatterv(comm, from, gives.data(), give_at.data(), to, o.uneven(me, 0), o.dtype,
                             root, nullptr, out));
        break;
      case Kind::kAllgatherv:
        RANK_TRY(
            dt_allgatherv(comm, from, to, takes.data(), take_at.data(), o.dtype, nullptr, out));
        break;
      case Kind::kBarrier: RANK_TRY(dt_barrier(comm, nullptr, out)); break;
      default: {
        dt_work* sent = nullptr;
        RANK_TRY(dt_send(comm, from, count, o.dtype, (me + 1) % size, nullptr, &sent));
        pending.works.push_back(sent);
        // Else a rank that is its own neighbour would wait for itself.
        RANK_TRY(dt_recv(comm, to, count, o.dtype, (me + size - 1) % size, nullptr, &work));
      }
    }
    if (work != nullptr) pending.works.push_back(work);
    const bool no_result = o.kind == Kind::kReduce && me != root;
    if (!no_result) {
      // Where this rank's part of the reduced elements begins.
      const int64_t before = o.kind == Kind::kReduceScatter || o.kind == Kind::kReduceScatterv
                                 ? give_at[size_t(me)]
                                 : 0;
      pending.check = [this, o, me, root, size, takes, to, width, reduces, before] {
        int64_t place = 0;
        for (int peer = 0; peer < size; ++peer) {
          for (int64_t i = 0; i < takes[size_t(peer)]; ++i, ++place) {
            const double found = get(to + size_t(place) * width, o.dtype);
            const bool same_for_all = o.kind == Kind::kAllgather || o.kind == Kind::kAllgatherv;
            const double wanted = reduces ? o.reduced(size, before + i)
                                  : o.kind == Kind::kBroadcast
                                      ? o.value(root, 0, i)
                                      : o.value(peer, same_for_all ? 0 : me, i);
            const double slack = o.op == DT_AVG && is_float(o.dtype) ? 0.05 : 0;
            if (std::fabs(found - wanted) <= slack) continue;
            why = "kind " + std::to_string(static_cast<int>(o.kind)) + ", dtype " +
                  std::to_string(o.dtype) + ", op " + std::to_string(o.op) + ", count " +
                  std::to_string(o.count) + ", rank " + std::to_string(me) + " of " +
                  std::to_string(size) + ": element " + std::to_string(place) + " is " +
                  std::to_string(found) + ", not " + std::to_string(wanted);
            return DT_ERR_INTERNAL;
          }
        }
        return DT_OK;
      };
    }
    pending_.push_back(std::move(pending));
    return DT_OK;
  }

  /// Waits for all that is under way, and looks at it.
  dt_status settle() {
    for (Pending& pending : pending_) {
      for (dt_work* work : pending.works) {
        RANK_TRY(dt_work_wait(work, -1, nullptr));
        dt_work_destroy(work);
      }
      if (pending.check) RANK_TRY(pending.check());
    }
    pending_.clear();
    return DT_OK;
  }

  const Rank rank_;
  Members members_;
  std::vector<Comm> comms_;
  std::vector<dt_comm*> parts_;
  std::vector<Pending> pending_;
};

// ---- a job ----

enum class End { kAll, kOneLeaves, kOneIsLost };

struct Soak {
  uint32_t seed = 0;
  std::vector<int> hosts;  // of each rank
  int steps = 0;
  End end = End::kAll;
  int victim = 0;

  explicit Soak(uint32_t given) : seed(given) {
    Random random(seed);
    const int host_count = 1 + static_cast<int>(draw(random, 5));
    const auto extra = static_cast<size_t>(draw(random, 9 - host_count));
    for (int host = 0; host < host_count; ++host) hosts.push_back(host);
    for (size_t i = 0; i < extra; ++i) hosts.push_back(static_cast<int>(draw(random, host_count)));
    if (hosts.size() == 1) hosts.push_back(0);
    std::shuffle(hosts.begin(), hosts.end(), random);
    steps = 5 + static_cast<int>(draw(random, 40));
    const int64_t how = draw(random, 6);
    end = how == 0 ? End::kOneLeaves : how == 1 ? End::kOneIsLost : End::kAll;
    victim = static_cast<int>(draw(random, static_cast<int64_t>(hosts.size())));
  }

  /// Empty: all as it should be.
  std::string live(int rank_number, dt_config* config) const {
    const int size = static_cast<int>(hosts.size());
    Rank rank{rank_number, size, nullptr, nullptr};
    const auto failed = [](const char* what) { return std::string(what) + ": " + dt_last_error(); };
    if (config == nullptr || dt_init(config, &rank.job) != DT_OK) return failed("dt_init");
    if (dt_comm_world(rank.job, &rank.world) != DT_OK) return failed("dt_comm_world");
    std::string problem;
    {
      Walker walker(rank);
      Random random(seed + 1);
      const dt_status status = walker.walk(random, steps);
      if (status != DT_OK) problem = walker.why.empty() ? failed("walk") : walker.why;
    }
    // The victim goes once all are through, which some may still be about to learn.
    const bool is_victim = rank_number == victim && end != End::kAll;
    for (int i = 0; i < 2 && problem.empty() && end != End::kAll; ++i) {
      if (i == 1 && is_victim) break;
      const dt_status status = dt_barrier(rank.world, nullptr, nullptr);
      if (status == DT_OK && i == 0) continue;
      dt_error_info info;
      dt_error_info_init(&info);
      if (status != DT_OK) dt_last_error_info(&info);
      // Where only the handles of a thread go, another rank may hear of the communicator's first.
      const bool fits =
          status == DT_ERR_PEER_LOST || (status == DT_ERR_ABORTED && end == End::kOneIsLost);
      if (!fits || info.rank != victim) problem = failed("without the one that is gone");
    }
    const bool finalizes = !is_victim || end == End::kOneLeaves;
    const dt_status ended = finalizes ? dt_finalize(rank.job, 20000) : DT_OK;
    if (ended != DT_OK && end == End::kAll && problem.empty()) problem = failed("dt_finalize");
    dt_job_destroy(rank.job);
    dt_comm_destroy(rank.world);
    return problem;
  }

  void run() const {
    const int size = static_cast<int>(hosts.size());
    ServedStore store(size);
    const auto settings_of = numbered(hosts, seed);
    std::vector<std::string> problems(hosts.size());
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        dt_config* const config = rank_config(r, size, store.port(), settings_of(r));
        problems[static_cast<size_t>(r)] = live(r, config);
        dt_config_destroy(config);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t r = 0; r < problems.size(); ++r) {
      CHECK_MESSAGE(problems[r].empty(), "SOAK_SEED=" << seed << ": rank " << r << " of " << size
                                                      << ", end " << static_cast<int>(end)
                                                      << " of rank " << victim << ": "
                                                      << problems[r]);
    }
  }
};

int64_t number_from(const char* variable, int64_t otherwise) {
  const char* const text = getenv(variable);
  return text == nullptr ? otherwise : atoll(text);
}

}  // namespace

TEST_CASE("soak: random jobs give what a plain computation gives") {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(number_from("SOAK_SECONDS", 10));
  auto seed = static_cast<uint32_t>(number_from("SOAK_SEED", 1));
  int jobs = 0;
  do {
    Soak(seed++).run();
    ++jobs;
  } while (Clock::now() < end);
  MESSAGE(jobs << " jobs, up to SOAK_SEED=" << seed - 1);
}

}  // namespace dt_test::soak_test
