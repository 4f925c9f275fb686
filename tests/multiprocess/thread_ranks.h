// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>
#include <dt/dt.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// Fails the test with dt's message unless `call` is DT_OK. For the test's main thread only: ranks
/// on threads return statuses instead.
#define REQUIRE_OK(call)                                                                   \
  do {                                                                                     \
    const dt_status require_ok_status = (call);                                            \
    const std::string require_ok_text = require_ok_status == DT_OK ? "" : dt_last_error(); \
    REQUIRE_MESSAGE(require_ok_status == DT_OK, require_ok_text);                          \
  } while (false)

namespace dt_test {

using Settings = std::vector<std::pair<std::string, std::string>>;

/// A store for ranks on threads of this process.
class ServedStore {
 public:
  explicit ServedStore(int world_size, const std::string& job_id = "test") {
    dt_config* config = nullptr;
    REQUIRE_OK(dt_config_create(nullptr, &config));
    REQUIRE_OK(dt_config_set(config, "job.id", job_id.c_str()));
    REQUIRE_OK(dt_config_set(config, "job.world_size", std::to_string(world_size).c_str()));
    REQUIRE_OK(dt_store_serve(config, &server_));
    REQUIRE_OK(dt_store_server_port(server_, &port_));
    dt_config_destroy(config);
  }
  ~ServedStore() { dt_store_server_destroy(server_); }
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;

  int32_t port() const { return port_; }

 private:
  dt_store_server* server_ = nullptr;
  int32_t port_ = 0;
};

/// What a rank saw: checked on the main thread, since doctest's REQUIRE throws.
struct Outcome {
  dt_status status = DT_OK;
  std::string message;  // of dt_last_error() at the first failure
};

/// One rank's view of a job.
struct Rank {
  int rank = 0;
  int world_size = 0;
  dt_job* job = nullptr;
  dt_comm* world = nullptr;
};

inline dt_config* rank_config(int rank, int world_size, int32_t port, const Settings& settings) {
  dt_config* config = nullptr;
  if (dt_config_create(nullptr, &config) != DT_OK) return nullptr;
  Settings all = {{"job.id", "test"},
                  {"job.rank", std::to_string(rank)},
                  {"job.world_size", std::to_string(world_size)},
                  {"job.master_addr", "127.0.0.1"},
                  {"job.master_port", std::to_string(port)},
                  {"job.store_served", "true"},
                  {"rendezvous.timeout_ms", "20000"},
                  {"collective.timeout_ms", "20000"}};
  all.insert(all.end(), settings.begin(), settings.end());
  for (const auto& [key, value] : all) {
    if (dt_config_set(config, key.c_str(), value.c_str()) != DT_OK) {
      dt_config_destroy(config);
      return nullptr;
    }
  }
  return config;
}

/// Keeps the first failing status with its message. `body` returns the first failure it meets.
inline Outcome outcome_of(dt_status status) {
  return {status, status == DT_OK ? std::string() : std::string(dt_last_error())};
}

/// Runs `body` as every rank of a job, each on a thread, with dt_init before and dt_finalize after
/// it; returns what each rank saw first. `settings_of` gives what differs between ranks.
inline std::vector<Outcome> run_ranks(int world_size,
                                      const std::function<dt_status(const Rank&)>& body,
                                      const Settings& settings = {},
                                      const std::function<Settings(int)>& settings_of = {}) {
  ServedStore store(world_size);
  std::vector<Outcome> outcomes(static_cast<size_t>(world_size));
  std::vector<std::thread> threads;
  for (int r = 0; r < world_size; ++r) {
    threads.emplace_back([&, r] {
      Outcome& outcome = outcomes[static_cast<size_t>(r)];
      Settings all = settings;
      if (settings_of) {
        for (const auto& each : settings_of(r)) all.push_back(each);
      }
      dt_config* const config = rank_config(r, world_size, store.port(), all);
      Rank rank{r, world_size, nullptr, nullptr};
      outcome = outcome_of(config == nullptr ? DT_ERR_CONFIG : dt_init(config, &rank.job));
      dt_config_destroy(config);
      if (outcome.status != DT_OK) return;
      outcome = outcome_of(dt_comm_world(rank.job, &rank.world));
      if (outcome.status == DT_OK) outcome = outcome_of(body(rank));
      const dt_status end = dt_finalize(rank.job, 20000);
      if (outcome.status == DT_OK) outcome = outcome_of(end);
      dt_comm_destroy(rank.world);
      dt_job_destroy(rank.job);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

/// Rank r is on host hosts[r]. The local ranks of each host are in an order made from `seed`, as a
/// launcher may number them; where a host has several ranks, it is another one than theirs.
inline std::function<Settings(int)> numbered(std::vector<int> hosts, unsigned seed) {
  std::map<int, std::vector<int>> local_ranks;
  for (const int host : hosts) {
    auto& there = local_ranks[host];
    there.push_back(static_cast<int>(there.size()));
  }
  std::mt19937 random(seed);
  for (auto& [host, there] : local_ranks) {
    std::shuffle(there.begin(), there.end(), random);
    if (std::is_sorted(there.begin(), there.end()))
      std::rotate(there.begin(), there.end() - 1, there.end());
  }
  return [hosts = std::move(hosts), local_ranks = std::move(local_ranks)](int rank) -> Settings {
    const int host = hosts[static_cast<size_t>(rank)];
    const auto place = std::count(hosts.begin(), hosts.begin() + rank, host);
    return {{"job.host_id", "host" + std::to_string(host)},
            {"job.local_rank", std::to_string(local_ranks.at(host)[static_cast<size_t>(place)])}};
  };
}

inline void require_all_ok(const std::vector<Outcome>& outcomes) {
  for (size_t r = 0; r < outcomes.size(); ++r) {
    CAPTURE(r);
    REQUIRE_MESSAGE(outcomes[r].status == DT_OK, outcomes[r].message);
  }
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace dt_test

/// In a rank's body: returns the status unless it is DT_OK.
#define RANK_TRY(call)                                                         \
  do {                                                                         \
    if (const dt_status rank_try = (call); rank_try != DT_OK) return rank_try; \
  } while (false)
