// SPDX-License-Identifier: Apache-2.0
// security_cost [ROUNDS]: what security.mode adds to a join and to the store, over loopback. Ranks
// are threads of this process, so that no start of a process counts; each pretends to be on a host
// of its own, so that the join also greets between hosts, as it does there. The modes take turns in
// each round. Prints one line for each figure: WHAT RANKS MODE VALUE, of each round. security.py
// sums up.
//
//   join        us from the moment at which all ranks call dt_init until all have returned
//   set, get    us of one dt_store_set / dt_store_get of 16 bytes, one after the other, by one rank
//   set_1m, get_1m   us of one of 1 MiB
#include <dt/dt.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kModes[] = {"none", "auth", "encrypt"};
constexpr int kRanks[] = {2, 4, 8};
constexpr int kSmallCalls = 300;
constexpr int kLargeCalls = 10;
constexpr size_t kLargeBytes = 1 << 20;
constexpr int64_t kTimeoutMs = 60'000;

void must(dt_status status) {
  if (status == DT_OK) return;
  fprintf(stderr, "security_cost: %s\n", dt_last_error());
  exit(1);
}

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

void report(const char* what, int ranks, const char* mode, double us) {
  printf("%s %d %s %.2f\n", what, ranks, mode, us);
}

dt_config* config_of(int rank, int ranks, const char* mode, int32_t port) {
  dt_config* config = nullptr;
  must(dt_config_create(nullptr, &config));
  const auto set = [&](const char* key, const std::string& value) {
    must(dt_config_set(config, key, value.c_str()));
  };
  set("job.id", "cost");
  set("job.world_size", std::to_string(ranks));
  set("security.mode", mode);
  if (rank < 0) return config;
  set("job.rank", std::to_string(rank));
  set("job.master_addr", "127.0.0.1");
  set("job.master_port", std::to_string(port));
  set("job.store_served", "true");
  set("job.host_id", "host" + std::to_string(rank));
  set("rendezvous.timeout_ms", std::to_string(kTimeoutMs));
  return config;
}

template <class Call>
double mean_us(int calls, const Call& call) {
  const Clock::time_point begin = Clock::now();
  for (int i = 0; i < calls; ++i) call(i);
  return us_since(begin) / calls;
}

void use_store(dt_job* job, int ranks, const char* mode) {
  std::string value(16, 'x');
  std::string large(kLargeBytes, 'y');
  const auto set = [&](const std::string& bytes) {
    must(dt_store_set(job, "key", bytes.data(), static_cast<int64_t>(bytes.size()), kTimeoutMs));
  };
  const auto get = [&](std::string* into) {
    int64_t bytes = 0;
    must(dt_store_get(job, "key", kTimeoutMs, into->data(), static_cast<int64_t>(into->size()),
                      &bytes));
    if (bytes == static_cast<int64_t>(into->size())) return;
    fprintf(stderr, "security_cost: the store gave %lld bytes\n", static_cast<long long>(bytes));
    exit(1);
  };
  set(value);
  report("set", ranks, mode, mean_us(kSmallCalls, [&](int) { set(value); }));
  report("get", ranks, mode, mean_us(kSmallCalls, [&](int) { get(&value); }));
  report("set_1m", ranks, mode, mean_us(kLargeCalls, [&](int) { set(large); }));
  report("get_1m", ranks, mode, mean_us(kLargeCalls, [&](int) { get(&large); }));
}

/// One job from the first call to the last one.
void measure(int ranks, const char* mode, bool with_store) {
  dt_config* const served = config_of(-1, ranks, mode, 0);
  dt_store_server* server = nullptr;
  int32_t port = 0;
  must(dt_store_serve(served, &server));
  must(dt_store_server_port(server, &port));
  dt_config_destroy(served);

  std::atomic<int> ready{0};
  std::atomic<bool> go{false};
  std::vector<Clock::time_point> joined(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      dt_config* const config = config_of(rank, ranks, mode, port);
      dt_job* job = nullptr;
      ready.fetch_add(1);
      go.wait(false);
      must(dt_init(config, &job));
      joined[static_cast<size_t>(rank)] = Clock::now();
      dt_config_destroy(config);
      if (with_store && rank == 0) use_store(job, ranks, mode);
      must(dt_finalize(job, kTimeoutMs));
      dt_job_destroy(job);
    });
  }
  while (ready.load() < ranks) std::this_thread::yield();
  const Clock::time_point begin = Clock::now();
  go.store(true);
  go.notify_all();
  for (std::thread& thread : threads) thread.join();
  const Clock::time_point end = *std::max_element(joined.begin(), joined.end());
  report("join", ranks, mode, std::chrono::duration<double, std::micro>(end - begin).count());
  dt_store_server_destroy(server);
}

}  // namespace

int main(int argument_count, char** arguments) {
  const int rounds = argument_count > 1 ? atoi(arguments[1]) : 15;
  if (rounds < 1) {
    fprintf(stderr, "security_cost [ROUNDS], of at least 1\n");
    return 2;
  }
  for (int round = 0; round <= rounds; ++round) {
    if (round == 1) printf("warm\n");  // what was said until here does not count
    for (const int ranks : kRanks) {
      for (const char* mode : kModes) measure(ranks, mode, ranks == kRanks[0]);
    }
  }
  return 0;
}
