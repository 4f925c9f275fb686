// SPDX-License-Identifier: Apache-2.0
// A C++17 program outside the source tree: each class of dt.hpp at world size 1.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <dt/dt.hpp>
#include <thread>
#include <type_traits>
#include <vector>

static_assert(!std::is_copy_constructible<dt::Job>::value, "handles have one owner");
static_assert(std::is_nothrow_move_constructible<dt::Work>::value, "a vector may move works");
static_assert(std::is_nothrow_move_assignable<dt::Comm>::value, "and assign them");
static_assert(std::is_nothrow_copy_constructible<dt::Error>::value, "a copy of an exception");
static_assert(dt::dtype_of<float>::value == DT_F32, "");
static_assert(dt::dtype_of<std::int64_t>::value == DT_I64, "");
static_assert(dt::dtype_of<long long>::value == DT_I64, "");
static_assert(dt::dtype_of<std::uint8_t>::value == DT_U8, "");

namespace {

std::atomic<int> failures{0};

void expect(bool holds, const char* what) {
  if (holds) return;
  ++failures;
  std::fprintf(stderr, "%s does not hold\n", what);
}
#define EXPECT(condition) expect(condition, #condition)

dt::Config alone() {
  dt::Config config;
  config.set("job.rank", "0");
  config.set("job.world_size", "1");
  return config;
}

void collectives(dt::Job& job) {
  dt::Comm comm = job.world();
  EXPECT(comm.rank() == 0 && comm.size() == 1 && comm.world_rank(0) == 0);
  const std::vector<double> send{1.5, 2.5, 3.5};
  std::vector<double> recv(3);
  comm.allreduce(send, recv);
  EXPECT(recv == send);
  std::vector<dt::Work> works;
  works.push_back(comm.allreduce_async(send, recv, DT_MAX));
  works.push_back(comm.reduce_async(dt::ConstView{}, {}, 0));
  works.push_back(comm.barrier_async());
  const std::optional<int32_t> first = dt::wait_any({&works[0], &works[1], &works[2]}, 5000);
  EXPECT(first.has_value());
  for (const dt::Work& work : works) EXPECT(work.wait() && work.test() && !work.error());
  comm.set_timeout(1000);
  comm.check();
  EXPECT(comm.work_fd() >= 0);
  float* memory = comm.alloc<float>(16);
  EXPECT(memory[15] >= 0 && memory[15] <= 0);
  comm.allreduce({memory, 16});
  comm.mem_free(memory);
  EXPECT(comm.split(0, 0).has_value() && !comm.split(-1, 0).has_value());
}

// Both forms of each collective.
#define CALL(name, ...)                      \
  do {                                       \
    if (blocking) {                          \
      comm.name(__VA_ARGS__);                \
    } else {                                 \
      comm.name##_async(__VA_ARGS__).wait(); \
    }                                        \
  } while (0)

using Ints = std::vector<int>;

/// As rank `me` of two.
void regular(dt::Comm& comm, bool blocking) {
  const int me = comm.rank();
  const Ints mine{me, me + 10}, sums{1, 21}, all{0, 10, 1, 11};
  Ints two(2), four(4);
  CALL(allreduce, mine, two);
  EXPECT(two == sums);
  std::array<int, 2> place{{me, me + 10}};
  CALL(allreduce, place, DT_MAX, {"largest", 60000});
  EXPECT(place[0] == 1 && place[1] == 11);
  two = {7, 7};
  CALL(reduce, mine, me == 1 ? dt::View(two) : dt::View(), 1);
  EXPECT(two == (me == 1 ? sums : Ints{7, 7}));
  two = mine;
  CALL(reduce, two, 0, DT_MIN);
  EXPECT(two == (me == 0 ? Ints{0, 10} : mine));
  int told[2] = {me, me};
  CALL(broadcast, told, 1);
  EXPECT(told[0] == 1 && told[1] == 1);
  CALL(allgather, mine, four);
  EXPECT(four == all);
  four = {0, 10, 1, 11};
  four[static_cast<std::size_t>(2 - 2 * me)] = -1;
  CALL(allgather, dt::View(four).part(2 * me, 2), four);
  EXPECT(four == all);
  CALL(reduce_scatter, all, two);
  EXPECT(two == (me == 0 ? Ints{0, 20} : Ints{2, 22}));
  CALL(alltoall, mine, two);
  EXPECT(two == (Ints{10 * me, 10 * me + 1}));
  CALL(gather, {mine.data(), mine.size()}, {four.data(), four.size()}, 0);
  EXPECT(four == all);
  CALL(scatter, me == 1 ? dt::ConstView(all) : dt::ConstView(), two, 1);
  EXPECT(two == mine);
  if (me == 0) CALL(send, {mine.data(), 2, DT_I32}, 1);
  if (me == 1) CALL(recv, two, 0);
  EXPECT(me == 0 || two == (Ints{0, 10}));
  CALL(barrier, );
}

/// Rank 0 has one element, rank 1 has three.
void with_blocks(dt::Comm& comm, bool blocking) {
  const int me = comm.rank();
  const std::vector<int64_t> counts{1, 3}, apart{3, 0};
  const Ints mine(me == 0 ? 1 : 3, me), joined{0, 1, 1, 1}, turned{1, 1, 1, 0};
  Ints four(4), own(mine.size());
  CALL(allgatherv, mine, four, counts);
  EXPECT(four == joined);
  CALL(allgatherv, mine, four, {counts, apart});
  EXPECT(four == turned);
  four = joined;
  CALL(gatherv, mine, four, me == 0 ? dt::Blocks(counts, apart) : dt::Blocks(), 0);
  EXPECT(four == (me == 0 ? turned : joined));
  // Of rank 1 nothing is wanted, and its recv, which is ignored, says of which type.
  const std::vector<int64_t> of_one{1, 0};
  four = joined;
  CALL(gatherv, me == 0 ? dt::ConstView(mine) : dt::ConstView(), four, of_one, 0);
  EXPECT(four == joined);
  CALL(scatterv, turned, {counts, apart}, own, 1);
  EXPECT(own == mine);
  CALL(reduce_scatterv, turned, {counts, apart}, own);
  EXPECT(own == (me == 0 ? Ints{0} : Ints{2, 2, 2}));
  // Rank r sends r + 1 elements to rank 1, and nothing to rank 0.
  const std::vector<int64_t> to{0, me + 1};
  const std::vector<int64_t> from =
      me == 0 ? std::vector<int64_t>{0, 0} : std::vector<int64_t>{1, 2};
  Ints got(me == 0 ? 0 : 3);
  CALL(alltoallv, Ints(static_cast<std::size_t>(me + 1), me), to, got, from);
  EXPECT(got == (me == 0 ? Ints{} : Ints{0, 1, 1}));
}

template <class F>
void refused(const char* words, F&& call) {
  try {
    call();
    EXPECT(!"thrown");
  } catch (const dt::Error& error) {
    EXPECT(error.status() == DT_ERR_INVALID_ARGUMENT);
    const bool says = std::string(error.what()).find(words) != std::string::npos;
    if (!says) std::fprintf(stderr, "%s\n", error.what());
    expect(says, words);
  }
}

/// Views that do not fit together reach nobody.
void wrong_views(dt::Comm& comm) {
  const Ints two(2), three(3);
  Ints four(4);
  Ints pair(2);
  std::vector<float> floats(2);
  const std::vector<int64_t> counts{1, 3}, many{1, 4}, one{4}, behind{0, 2};
  const std::vector<int> ints{1, 3};
  refused("allreduce: send has 2 elements and recv 4", [&] { comm.allreduce(two, four); });
  refused("allreduce: send and recv have elements of different dtypes",
          [&] { comm.allreduce(two, floats); });
  refused("allgather: send has 3 elements and recv 4; they are 1 and 2 parts of one size",
          [&] { comm.allgather(three, four); });
  refused("reduce_scatter: send has 3", [&] { comm.reduce_scatter(three, pair); });
  refused("alltoall: send has 3", [&] { comm.alltoall(three, four); });
  refused("gather: send has 3", [&] { comm.gather(three, four, comm.rank()); });
  refused("scatter: send has 3", [&] { comm.scatter(three, four, comm.rank()); });
  refused("allgatherv: the block of rank 1 ends behind the 4 elements of its view",
          [&] { comm.allgatherv(two, four, many); });
  refused("allgatherv: the block of rank 1 ends", [&] {
    comm.allgatherv(two, four, {counts, behind});
  });
  refused("allgatherv: counts and offsets are an int64_t for each of the 2 ranks",
          [&] { comm.allgatherv(two, four, one); });
  refused("an int64_t for each", [&] { comm.allgatherv(two, four, ints); });
  refused("allgatherv: send has 2 elements, but this rank's count is",
          [&] { comm.allgatherv(two, four, counts); });
  refused("gatherv: no view has a dtype", [&] { comm.gatherv({}, {}, {}, 1 - comm.rank()); });
  refused("part: elements 2 to 5 of a view of 4", [&] { (void)dt::View(four).part(2, 3); });
  refused("root is 2", [&] { comm.broadcast(four, 2); });
}

/// A rank that is a thread of this program.
void rank_of_two(int rank, int port) {
  try {
    dt::Config config;
    config.set("job.id", "consumer");
    config.set("job.rank", std::to_string(rank));
    config.set("job.world_size", "2");
    config.set("job.master_addr", "127.0.0.1");
    config.set("job.master_port", std::to_string(port));
    config.set("job.store_served", "true");
    dt::Job job(config);
    dt::Comm comm = job.world();
    for (const bool blocking : {true, false}) {
      regular(comm, blocking);
      with_blocks(comm, blocking);
    }
    wrong_views(comm);
    comm.barrier();
    try {  // a limit of this operation alone
      if (rank == 0) comm.barrier({"lonely", 20});
      EXPECT(rank != 0);
    } catch (const dt::Error& error) {
      EXPECT(error.status() == DT_ERR_TIMEOUT);
      EXPECT(std::string(error.what()).find("lonely") != std::string::npos);
    }
    job.store_barrier("timed out");
  } catch (const dt::Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    EXPECT(!"an error");
  }
}

void two_ranks() {
  dt::Config config;
  config.set("job.id", "consumer");
  config.set("job.world_size", "2");
  const dt::StoreServer server(config);
  std::thread first(rank_of_two, 0, server.port()), second(rank_of_two, 1, server.port());
  first.join();
  second.join();
}

void store(dt::Job& job) {
  const std::string bytes("a\0b", 3);
  job.store_set("key", bytes);
  EXPECT(job.store_get("key") == bytes);
  const std::string large(100000, 'x');
  job.store_multi_set({"large", "small"}, {large, ""});
  EXPECT(job.store_get("large") == large);
  const auto values = job.store_multi_get({"large", "absent", "small"});
  EXPECT(values.size() == 3 && values[0] == large && !values[1] && values[2] == std::string());
  EXPECT(job.store_add("number", 5) == 5);
  EXPECT(job.store_compare_set("swap", std::nullopt, "1"));
  EXPECT(!job.store_compare_set("swap", "2", "3"));
  job.store_wait({"large", "small"}, 0);
  const std::vector<std::string> keys{"large"};
  EXPECT(job.store_list("l") == keys);
  EXPECT(job.store_delete("large") && !job.store_delete("large"));
  job.store_barrier("end");
}

void training(dt::Job& job) {
  dt::Comm comm = job.world();
  dt::Reducer reducer(comm, {{4, DT_F32, "weight"}, {2, DT_F32, ""}});
  float* gradient = reducer.grad_as<float>(0);
  gradient[0] = 2;
  std::vector<float> other{1, 2};
  reducer.ready(1, other.data());
  reducer.ready(0);
  reducer.finish();
  EXPECT(gradient[0] >= 2 && gradient[0] <= 2);
  EXPECT(reducer.stats().steps == 1);
  EXPECT(reducer.bucket(0) >= 0);
  reducer.rebuild();
  EXPECT(dt::Named(comm).report(60'000).empty());

  const float rows[] = {1, 10, 3, 30};
  const dt::BatchMoments moments = comm.batch_moments(rows, 2, 2, 1, DT_F32);
  const std::vector<double> means{2, 20}, variances{1, 100}, sums{4, 40};
  EXPECT(moments.mean == means && moments.variance == variances && moments.count == 2);
  const dt::BatchGradientSums gradient_sums =
      comm.batch_gradient_sums(rows, rows, 2, 1, DT_F32, moments, 0);
  const std::vector<double> products{2, 20};
  EXPECT(gradient_sums.sum == sums && gradient_sums.product == products);

  dt::SamplerOptions options;
  options.size = 3;
  options.sequential = true;
  dt::Sampler sampler(options);
  sampler.set_epoch(1);
  const std::vector<int64_t> expected{1, 2};
  EXPECT(sampler.length() == 3 && sampler.indices(1) == expected);
  const std::vector<int64_t> first{0};
  EXPECT(sampler.next(1) == first);
  const dt::SamplerState state = sampler.save();
  EXPECT(state.epoch == 1 && state.consumed == 1 && sampler.save(0).consumed == 0);
  EXPECT(sampler.next(5) == expected && sampler.next(5).empty());
  sampler.resume(state);
  EXPECT(sampler.length() == 2 && sampler.next(INT64_MAX) == expected);

  const std::vector<double> weights{0, 0, 2};
  options.sequential = false;
  options.weights = weights.data();
  options.draws = 2;
  const std::vector<int64_t> drawn{2, 2};
  EXPECT(dt::Sampler(options).indices() == drawn);
  options.weights = nullptr;
  options.draws = 0;
  options.block = 1;
  std::vector<int64_t> mixed = dt::Sampler(options).indices();
  std::sort(mixed.begin(), mixed.end());
  const std::vector<int64_t> all{0, 1, 2};
  EXPECT(mixed == all);
}

/// Where the C function takes NULL for none, a closed object would silently be none.
void closed(dt::Job& job) {
  dt::Config config = alone();
  config.close();
  refused("Job: config was closed or moved from", [&] { dt::Job other(config); });
  refused("StoreServer: config was closed", [&] { dt::StoreServer other(config); });
  refused("ps_info: config was closed", [&] { (void)dt::ps_info(&config); });
  refused("Ps: config was closed", [&] { dt::Ps other(&config); });
  refused("PsServer: config was closed", [&] { dt::PsServer other(&config); });
  dt::Shard shard(job.world(), {{4, DT_F32, "weight"}});
  dt::Optimizer optimizer = dt::Optimizer::sgd(shard);
  optimizer.close();
  refused("Shard::save: optimizer was closed", [&] { shard.save("/nowhere/file", optimizer); });
  refused("Shard::load: optimizer was closed", [&] { shard.load("/nowhere/file", optimizer); });
}

void errors(dt::Job& job) {
  dt::Comm comm = job.world();
  const dt::Comm taken = std::move(comm);
  try {
    comm.barrier();  // moved from: refused, not a crash
    EXPECT(!"thrown");
  } catch (const dt::Error& error) {
    EXPECT(error.status() == DT_ERR_INVALID_ARGUMENT);
    EXPECT(std::string(error.what()).find("comm is NULL") != std::string::npos);
  }
  try {
    job.abort("on purpose");
    taken.check();
    EXPECT(!"thrown");
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const dt::Error*>(&error);
    EXPECT(ours != nullptr && ours->status() == DT_ERR_ABORTED && ours->rank() == 0);
    EXPECT(std::string(error.what()).find("on purpose") != std::string::npos);
  }
}

}  // namespace

int main() {
  try {
    EXPECT(dt::abi_version() == DT_ABI_VERSION && dt::version() == DT_VERSION);
    const dt::Config config = alone();
    EXPECT(config.get("job.world_size") == "1" && config.dump().size() > 256);
    dt::Job job(config);
    EXPECT(job.place().world_size == 1 && !job.place().host.empty());
    collectives(job);
    store(job);
    training(job);
    closed(job);
    const dt::StoreServer server(config);
    EXPECT(server.port() > 0);
    job.finalize();
    dt::Job second(config);
    errors(second);
    two_ranks();
    std::printf("C++: dt %s\n", dt::version().c_str());
  } catch (const dt::Error& error) {
    std::fprintf(stderr, "%s: %s\n", dt::status_name(error.status()).c_str(), error.what());
    return 1;
  }
  return failures != 0;
}
