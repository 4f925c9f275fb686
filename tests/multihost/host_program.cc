// SPDX-License-Identifier: Apache-2.0
// A rank of a job over several hosts. The mode says what it does; when dt reports an error it
// prints that and ends with code 9.
#include <dt/dt.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <vector>

namespace {

[[noreturn]] void fail(int rank) {
  dt_error_info info;
  dt_error_info_init(&info);
  dt_last_error_info(&info);
  printf("rank %d saw %s of rank %d host %s pid %lld: %s\n", rank, dt_status_name(info.status),
         info.rank, info.host, static_cast<long long>(info.pid), info.message);
  fflush(stdout);
  _exit(9);
}

void check(dt_status status, int rank) {
  if (status != DT_OK) fail(rank);
}

[[noreturn]] void wrong(int rank, const std::string& what) {
  printf("rank %d got a wrong result: %s\n", rank, what.c_str());
  fflush(stdout);
  _exit(8);
}

/// Small whole numbers, which every dtype holds, as bits of the dtype.
void put(dt_dtype dtype, void* data, int64_t index, int value) {
  const auto single = static_cast<float>(value);
  uint32_t bits;
  memcpy(&bits, &single, sizeof bits);
  switch (dtype) {
    case DT_I8:
    case DT_U8: static_cast<uint8_t*>(data)[index] = static_cast<uint8_t>(value); return;
    case DT_I32:
    case DT_U32: static_cast<uint32_t*>(data)[index] = static_cast<uint32_t>(value); return;
    case DT_I64:
    case DT_U64: static_cast<uint64_t*>(data)[index] = static_cast<uint64_t>(value); return;
    case DT_F32: static_cast<float*>(data)[index] = single; return;
    case DT_F64: static_cast<double*>(data)[index] = value; return;
    case DT_BF16: static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(bits >> 16); return;
    case DT_F16: {  // normal numbers only: sign, exponent less 112, ten bits of fraction
      const uint32_t half = value == 0 ? 0 : ((bits >> 13) - (112u << 10)) & 0x7fff;
      static_cast<uint16_t*>(data)[index] = static_cast<uint16_t>(half | (bits >> 16 & 0x8000));
      return;
    }
    default: abort();
  }
}

constexpr int kBytes[] = {1, 1, 4, 4, 8, 8, 2, 2, 4, 8};  // by dtype

int combine(dt_reduce_op op, int a, int b) {
  switch (op) {
    case DT_PROD: return a * b;
    case DT_MIN: return a < b ? a : b;
    case DT_MAX: return a > b ? a : b;
    default: return a + b;
  }
}

double get(dt_dtype dtype, const void* data, int64_t index) {
  if (dtype == DT_F32) return static_cast<const float*>(data)[index];
  if (dtype == DT_F64) return static_cast<const double*>(data)[index];
  const uint32_t half = static_cast<const uint16_t*>(data)[index];
  const uint32_t bits = dtype == DT_BF16 ? half << 16
                        : half == 0      ? 0
                                         : ((half & 0x7fff) << 13) + (112u << 23);
  float single;
  memcpy(&single, &bits, sizeof single);
  return single;
}

bool close_to(dt_dtype dtype, const std::vector<uint8_t>& found, const std::vector<uint8_t>& wanted,
              int64_t count) {
  const double tolerance = dtype == DT_BF16 ? 0.02 : dtype == DT_F16 ? 0.005 : 1e-5;
  for (int64_t i = 0; i < count; ++i) {
    const double expected = get(dtype, wanted.data(), i);
    const double difference = get(dtype, found.data(), i) - expected;
    if (difference > tolerance * expected || -difference > tolerance * expected) return false;
  }
  return true;
}

/// What each rank sends and what comes of it depend on an element's index modulo this number.
constexpr int64_t kPeriod = int64_t{7} * 13;

/// Fills the first kPeriod elements. All numbers on the way are whole, so that f16 too holds them:
/// for the average those of all ranks are multiples of their number, for the product ones and twos.
void put_period(dt_dtype dtype, dt_reduce_op op, int rank, int size, void* send, void* wanted) {
  for (int64_t i = 0; i < kPeriod; ++i) {
    int result = 0;
    for (int r = 0; r < size; ++r) {
      int value = static_cast<int>((r + size * i + i / 7) % 13);
      if (op == DT_PROD) value = value % 2 + 1;
      if (op == DT_AVG) value = value % 3 * size;
      result = r == 0 ? value : combine(op, result, value);
      if (r == rank) put(dtype, send, i, value);
    }
    put(dtype, wanted, i, op == DT_AVG ? result / size : result);
  }
}

/// As many bytes of the period again and again.
void repeat(const std::vector<uint8_t>& period, std::vector<uint8_t>* to) {
  for (size_t at = 0; at < to->size(); at += period.size()) {
    memcpy(to->data() + at, period.data(), std::min(period.size(), to->size() - at));
  }
}

/// Every reduction of every dtype, in which each rank and index differs; every element is compared
/// with the closed form.
void reduce_every_dtype(dt_comm* world, int rank, int size) {
  for (int type = 0; type < 10; ++type) {
    const auto dtype = static_cast<dt_dtype>(type);
    std::vector<uint8_t> sent_period(static_cast<size_t>(kPeriod * kBytes[type]));
    std::vector<uint8_t> wanted_period(sent_period.size());
    for (const int64_t count : {int64_t{1}, int64_t{7}, int64_t{5003}, int64_t{300'001}}) {
      const auto bytes = static_cast<size_t>(count * kBytes[type]);
      std::vector<uint8_t> send(bytes);
      std::vector<uint8_t> recv(bytes);
      std::vector<uint8_t> wanted(bytes);
      for (const dt_reduce_op op : {DT_SUM, DT_AVG, DT_PROD, DT_MIN, DT_MAX}) {
        // What is large differs only in how it moves, for which two of them are enough.
        if (count == 300'001 && op != DT_SUM && op != DT_MAX) continue;
        put_period(dtype, op, rank, size, sent_period.data(), wanted_period.data());
        repeat(sent_period, &send);
        repeat(wanted_period, &wanted);
        check(dt_allreduce(world, send.data(), recv.data(), count, dtype, op, nullptr, nullptr),
              rank);
        // An average of floats has a rounded 1/ranks in it where that is no power of two.
        const bool exact = op != DT_AVG || type < 6 || (size & (size - 1)) == 0;
        if (exact ? recv != wanted : !close_to(dtype, recv, wanted, count)) {
          wrong(rank, "allreduce of dtype " + std::to_string(type) + " op " +
                          std::to_string(static_cast<int>(op)) + " x " + std::to_string(count));
        }
      }
    }
  }
}

/// Small transfers of every rank with every other, more than a thousand in flight at once, in which
/// each number differs: none is lost, and none overtakes another.
void many_transfers(dt_comm* world, int rank, int size) {
  constexpr int kEach = 1000;
  const auto peers = static_cast<size_t>(size);
  std::vector<int32_t> outgoing(peers * kEach);
  std::vector<int32_t> incoming(peers * kEach, -1);
  std::vector<dt_work*> works;
  for (int i = 0; i < kEach; ++i) {
    for (int step = 1; step < size; ++step) {
      const int to = (rank + step) % size;
      const int from = (rank + size - step) % size;
      int32_t* out = &outgoing[static_cast<size_t>(to) * kEach + static_cast<size_t>(i)];
      int32_t* in = &incoming[static_cast<size_t>(from) * kEach + static_cast<size_t>(i)];
      *out = (rank * size + to) * kEach + i;
      dt_work* work = nullptr;
      // Odd ranks receive first: at any time some peer is behind, and some ahead.
      for (const bool sends : {rank % 2 == 0, rank % 2 != 0}) {
        check(sends ? dt_send(world, out, 1, DT_I32, to, nullptr, &work)
                    : dt_recv(world, in, 1, DT_I32, from, nullptr, &work),
              rank);
        works.push_back(work);
      }
    }
  }
  for (dt_work* work : works) {
    int32_t done = 0;
    check(dt_work_wait(work, 60'000, &done), rank);
    if (done == 0) wrong(rank, "a transfer does not end");
    dt_work_destroy(work);
  }
  for (int from = 0; from < size; ++from) {
    for (int i = 0; i < kEach && from != rank; ++i) {
      const int32_t got = incoming[static_cast<size_t>(from) * kEach + static_cast<size_t>(i)];
      if (got != (from * size + rank) * kEach + i) wrong(rank, "a transfer overtook another");
    }
  }
}

/// In each of which every element differs. `count`: of a block.
void move_blocks(dt_comm* world, int rank, int size, int64_t count) {
  const auto value = [&](int from, int64_t i) {
    return static_cast<int32_t>(i * 7 + from * 1'000'003);
  };
  const std::string of_count = " x " + std::to_string(count);
  std::vector<int32_t> mine(static_cast<size_t>(count));
  std::vector<int32_t> all(static_cast<size_t>(size * count), -1);
  for (int64_t i = 0; i < count; ++i) mine[static_cast<size_t>(i)] = value(rank, i);
  check(dt_allgather(world, mine.data(), all.data(), count, DT_I32, nullptr, nullptr), rank);
  for (int64_t i = 0; i < size * count; ++i) {
    if (all[static_cast<size_t>(i)] != value(static_cast<int>(i / count), i % count)) {
      wrong(rank, "allgather" + of_count);
    }
  }
  check(dt_reduce_scatter(world, all.data(), mine.data(), count, DT_I32, DT_SUM, nullptr, nullptr),
        rank);
  for (int64_t i = 0; i < count; ++i) {
    if (mine[static_cast<size_t>(i)] != size * value(rank, i)) {
      wrong(rank, "reduce_scatter" + of_count);
    }
  }
  for (const int root : {0, size - 1}) {
    for (int64_t i = 0; i < count; ++i) mine[static_cast<size_t>(i)] = value(rank, i);
    check(dt_broadcast(world, mine.data(), count, DT_I32, root, nullptr, nullptr), rank);
    for (int64_t i = 0; i < count; ++i) {
      if (mine[static_cast<size_t>(i)] != value(root, i)) wrong(rank, "broadcast" + of_count);
      mine[static_cast<size_t>(i)] = value(rank, i) - size;
    }
    std::fill(all.begin(), all.end(), -1);
    check(dt_reduce(world, mine.data(), all.data(), count, DT_I32, DT_MAX, root, nullptr, nullptr),
          rank);
    for (int64_t i = 0; i < count; ++i) {
      const int32_t wanted = rank == root ? value(size - 1, i) - size : -1;
      if (all[static_cast<size_t>(i)] != wanted) wrong(rank, "reduce" + of_count);
    }
  }
}

/// One of a sequence of operations that all ranks make up alike: up to three are under way at a
/// time.
struct Chosen {
  int kind;
  int root;
  int64_t count;
  uint32_t seed;
  bool in_place;
  std::vector<int32_t> send;
  std::vector<int32_t> recv;
  dt_work* work = nullptr;

  int32_t value(int from, int64_t i) const {
    const uint32_t mixed =
        (seed + static_cast<uint32_t>(from) * 2654435761u) ^ static_cast<uint32_t>(i) * 40503u;
    return static_cast<int32_t>((mixed ^ mixed >> 13) & 0xff'ffff);
  }
  void begin(dt_comm* world, int rank, int size) {
    const bool scatters = kind == 3 || kind == 5;  // a block for each rank
    const bool gathers = kind == 4 || kind == 5;
    send.resize(static_cast<size_t>(scatters ? count * size : count));
    recv.assign(static_cast<size_t>(gathers ? count * size : count), -1);
    for (size_t i = 0; i < send.size(); ++i) send[i] = value(rank, static_cast<int64_t>(i));
    if (in_place && kind < 3) recv = send;
    const void* from = in_place && kind < 2 ? recv.data() : send.data();
    if (kind == 2 && rank == root) recv = send;
    dt_status status = DT_OK;
    switch (kind) {
      case 0:
        status = dt_allreduce(world, from, recv.data(), count, DT_I32, DT_SUM, nullptr, &work);
        break;
      case 1:
        status = dt_reduce(world, from, recv.data(), count, DT_I32, DT_MAX, root, nullptr, &work);
        break;
      case 2: status = dt_broadcast(world, recv.data(), count, DT_I32, root, nullptr, &work); break;
      case 3:
        status = dt_reduce_scatter(world, from, recv.data(), count, DT_I32, DT_SUM, nullptr, &work);
        break;
      case 4: status = dt_allgather(world, from, recv.data(), count, DT_I32, nullptr, &work); break;
      default: status = dt_alltoall(world, from, recv.data(), count, DT_I32, nullptr, &work); break;
    }
    check(status, rank);
  }
  int32_t wanted(int rank, int size, int64_t i) const {
    if (kind == 2) return value(root, i);
    if (kind == 4) return value(static_cast<int>(i / count), i % count);
    if (kind == 5) return value(static_cast<int>(i / count), rank * count + i % count);
    int32_t result = 0;
    for (int from = 0; from < size; ++from) {
      const int32_t each = value(from, kind == 3 ? rank * count + i : i);
      result = kind == 1 ? std::max(result, each) : result + each;
    }
    return result;
  }
  void end(int rank, int size) {
    int32_t done = 0;
    check(dt_work_wait(work, 60'000, &done), rank);
    dt_work_destroy(work);
    if (done == 0) wrong(rank, "a random operation does not end");
    if (kind == 1 && rank != root) return;
    for (size_t i = 0; i < recv.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      if (recv[i] == wanted(rank, size, at)) continue;
      wrong(rank, "random operation " + std::to_string(seed) + " of kind " + std::to_string(kind) +
                      " x " + std::to_string(count) + " at " + std::to_string(i));
    }
  }
};

/// `number` more than one for each root.
void random_operations(dt_comm* world, int rank, int size, uint32_t seed, int number) {
  std::mt19937 random(seed);
  std::deque<Chosen> under_way;
  for (int i = 0; i < size + number; ++i) {
    Chosen next{};
    next.kind = static_cast<int>(random() % 6);
    next.root = static_cast<int>(random() % static_cast<uint32_t>(size));
    const uint32_t most = uint32_t{1} << random() % 20;
    next.count = random() % (most + 1);
    next.seed = static_cast<uint32_t>(random());
    next.in_place = random() % 2 == 0;
    const size_t at_once = 1 + random() % 3;
    if (i < size) {  // first from every root, when ranks know only those that they need for it
      next.kind = 1 + i % 2;
      next.root = i;
      next.count = 200'003;
    }
    under_way.push_back(std::move(next));
    under_way.back().begin(world, rank, size);
    for (; under_way.size() >= at_once; under_way.pop_front()) under_way.front().end(rank, size);
  }
  for (Chosen& each : under_way) each.end(rank, size);
}

void others(dt_comm* world, int rank, int size) {
  move_blocks(world, rank, size, 1000);
  move_blocks(world, rank, size, 300'001);
  dt_work* work = nullptr;
  int32_t token = rank;
  int32_t got = -1;
  const int next = (rank + 1) % size;
  check(dt_send(world, &token, 1, DT_I32, next, nullptr, &work), rank);
  check(dt_recv(world, &got, 1, DT_I32, (rank + size - 1) % size, nullptr, nullptr), rank);
  int32_t done = 0;
  check(dt_work_wait(work, 30'000, &done), rank);
  dt_work_destroy(work);
  if (done == 0 || got != (rank + size - 1) % size) wrong(rank, "send and recv");
  dt_comm* half = nullptr;
  check(dt_comm_split(world, rank % 2, -rank, &half), rank);
  double one = 1;
  check(dt_allreduce(half, &one, &one, 1, DT_F64, DT_SUM, nullptr, nullptr), rank);
  if (one != (size + 1 - rank % 2) / 2) wrong(rank, "split");
  dt_comm_destroy(half);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  setvbuf(stdout, nullptr, _IOLBF, 0);
  dt_job* job = nullptr;
  dt_place place;
  dt_place_init(&place);
  const char* told = getenv("DT_RANK");
  check(dt_init(nullptr, &job), told != nullptr ? atoi(told) : -1);
  check(dt_rank_info(job, &place), -1);
  const int rank = place.rank;
  dt_comm* world = nullptr;
  check(dt_comm_world(job, &world), rank);
  // "reach" is every kind of operation once or twice, "collectives" every dtype as well.
  const bool checks = mode == "check";
  if (checks || mode == "collectives") reduce_every_dtype(world, rank, place.world_size);
  if (checks || mode == "collectives" || mode == "reach") others(world, rank, place.world_size);
  if (checks) many_transfers(world, rank, place.world_size);
  if (mode == "random") {  // from the seed on, so many operations
    random_operations(world, rank, place.world_size, static_cast<uint32_t>(atoll(argv[2])),
                      atoi(argv[3]));
  }
  if (mode == "transfers") {  // one that ends in time, then one for which nobody sends
    int32_t token = rank;
    check(dt_barrier(world, nullptr, nullptr), rank);
    printf("ready\n");
    if (rank == 0) {
      dt_work* works[2] = {};
      int32_t got[2] = {-1, -1};
      int32_t done = 0;
      check(dt_comm_set_timeout(world, 60'000), rank);
      check(dt_recv(world, &got[0], 1, DT_I32, 1, nullptr, &works[0]), rank);
      check(dt_comm_set_timeout(world, 1500), rank);
      check(dt_recv(world, &got[1], 1, DT_I32, 2, nullptr, &works[1]), rank);
      check(dt_work_wait(works[1], 30'000, &done), rank);
      wrong(rank, "nobody sent that");
    }
    (void)getchar();
    check(dt_send(world, &token, 1, DT_I32, 0, nullptr, nullptr), rank);
  }
  if (mode == "bytes") {  // as many f32 elements as the argument says, once
    const int64_t count = atoll(argv[2]);
    std::vector<float> data(static_cast<size_t>(count), 1);
    check(dt_barrier(world, nullptr, nullptr), rank);
    printf("ready\n");
    (void)getchar();
    check(dt_allreduce(world, data.data(), data.data(), count, DT_F32, DT_SUM, nullptr, nullptr),
          rank);
  }
  if (mode == "loop") {
    std::vector<float> data(200'000);
    check(dt_barrier(world, nullptr, nullptr), rank);
    printf("ready\n");
    for (;;) {
      check(
          dt_allreduce(world, data.data(), data.data(), 200'000, DT_F32, DT_SUM, nullptr, nullptr),
          rank);
    }
  }
  printf("rank %d of %d is local %d of %d on node %d of %d\n", rank, place.world_size,
         place.local_rank, place.local_size, place.node_rank, place.node_count);
  dt_comm_destroy(world);
  check(dt_finalize(job, -1), rank);
  dt_job_destroy(job);
  return 0;
}
