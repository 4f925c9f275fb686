// SPDX-License-Identifier: Apache-2.0
// A C++17 program outside the source tree: each class of dt.hpp at world size 1.
#include <algorithm>
#include <cstdio>
#include <dt/dt.hpp>
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

int failures = 0;

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
  comm.allreduce(send.data(), recv.data(), 3);
  EXPECT(recv == send);
  std::vector<dt::Work> works;
  works.push_back(comm.allreduce_async(send.data(), recv.data(), 3, DT_MAX));
  works.push_back(comm.reduce_async(send.data(), nullptr, 0, DT_SUM, 0));
  works.push_back(comm.barrier_async());
  const std::optional<int32_t> first = dt::wait_any({&works[0], &works[1], &works[2]}, 5000);
  EXPECT(first.has_value());
  for (const dt::Work& work : works) EXPECT(work.wait() && work.test() && !work.error());
  comm.broadcast(recv.data(), 3, 0);
  comm.allgather(send.data(), recv.data(), 3);
  comm.reduce_scatter(send.data(), recv.data(), 3);
  comm.reduce(send.data(), recv.data(), 3, DT_SUM, 0);
  const std::vector<int64_t> counts{3};
  comm.alltoall(send.data(), recv.data(), 3);
  comm.alltoallv(send.data(), counts.data(), nullptr, recv.data(), counts.data(), nullptr);
  comm.gather(send.data(), recv.data(), 3, 0);
  comm.gatherv(send.data(), 3, recv.data(), counts.data(), nullptr, DT_F64, 0);
  comm.scatter(send.data(), recv.data(), 3, 0);
  comm.scatterv(send.data(), counts.data(), nullptr, recv.data(), 3, DT_F64, 0);
  comm.allgatherv(send.data(), recv.data(), counts.data(), nullptr);
  comm.allreduce(static_cast<const void*>(send.data()), recv.data(), 3, DT_F64);
  comm.set_timeout(1000);
  comm.check();
  EXPECT(comm.work_fd() >= 0);
  EXPECT(recv == send);
  float* memory = comm.alloc<float>(16);
  EXPECT(memory[15] >= 0 && memory[15] <= 0);
  comm.mem_free(memory);
  EXPECT(comm.split(0, 0).has_value() && !comm.split(-1, 0).has_value());
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

void errors(dt::Job& job) {
  dt::Comm comm = job.world();
  const dt::Comm taken = std::move(comm);
  try {
    comm.barrier();  // moved from: refused, not a crash
    EXPECT(!"thrown");
  } catch (const dt::Error& error) {
    EXPECT(error.status() == DT_ERR_INVALID_ARGUMENT);
    EXPECT(std::string(error.what()).find("dt_barrier") != std::string::npos);
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
    const dt::StoreServer server(config);
    EXPECT(server.port() > 0);
    job.finalize();
    dt::Job second(config);
    errors(second);
    std::printf("C++: dt %s\n", dt::version().c_str());
  } catch (const dt::Error& error) {
    std::fprintf(stderr, "%s: %s\n", dt::status_name(error.status()).c_str(), error.what());
    return 1;
  }
  return failures != 0;
}
