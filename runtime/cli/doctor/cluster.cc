// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/cluster.h"

#include <unistd.h>

#include "net/loop.h"
#include "store/client.h"
#include "store/server.h"

namespace dt::cli::doctor {
namespace {

constexpr int64_t kAnswerMs = 10'000;    // for a store that has answered before
constexpr int64_t kFarewellMs = 2'000;   // for the answers to the other ranks' last words
constexpr size_t kReportsPerCall = 512;  // well below what one answer may hold

std::string key_of(int64_t rank) { return "dt.doctor/" + std::to_string(rank); }

Result<std::unique_ptr<store::Server>> serve(net::Loop* loop, const Machine& machine,
                                             const std::string& host) {
  const launch::Place& place = *machine.place;
  store::ServerOptions options;
  options.job_id = place.job_id;
  options.attempt = place.attempt;
  options.world_size = place.world_size;
  options.bind_address = machine.config.text("store.bind").empty()
                             ? place.master_addr
                             : machine.config.text("store.bind");
  options.port = static_cast<uint16_t>(launch::store_port(place));
  options.server_rank = 0;
  options.host = host;
  options.pid = getpid();
  return store::Server::start(loop, options);
}

Result<std::shared_ptr<store::Client>> connect(net::Loop* loop, const launch::Place& place,
                                               const std::string& host, const Wait& wait) {
  store::ClientOptions options;
  options.host = place.master_addr;
  options.port = static_cast<uint16_t>(launch::store_port(place));
  options.job_id = place.job_id;
  options.attempt = place.attempt;
  options.host_name = host;
  options.pid = getpid();
  return store::Client::connect(loop, options, wait);
}

/// What is there once all have come, or at the deadline.
Result<std::vector<Report>> collect(store::Client& client, int32_t world_size, const Wait& wait) {
  std::vector<std::string> keys;
  for (int32_t rank = 0; rank < world_size; ++rank) keys.push_back(key_of(rank));
  if (const Status all = client.wait_for(keys, wait); !all.ok() && all.code() != Code::kTimeout) {
    return all;
  }
  const Wait answer{Deadline::after_ms(kAnswerMs), nullptr};
  std::vector<Report> reports(keys.size());
  for (size_t begin = 0; begin < keys.size(); begin += kReportsPerCall) {
    const size_t end = std::min(begin + kReportsPerCall, keys.size());
    const std::vector<std::string> some(keys.begin() + static_cast<ptrdiff_t>(begin),
                                        keys.begin() + static_cast<ptrdiff_t>(end));
    DT_TRY_VALUE(const auto values, client.multi_get(some, answer));
    for (size_t i = 0; i < values.size(); ++i) {
      Report report;
      if (values[i] && decode(*values[i], &report)) reports[begin + i] = std::move(report);
    }
  }
  return reports;
}

}  // namespace

Result<std::vector<Report>> gather(const Machine& machine, const Report& own, const Wait& wait) {
  if (!machine.place) return machine.place_error;
  const launch::Place& place = *machine.place;
  if (place.world_size == 1) return std::vector<Report>{own};
  DT_TRY_VALUE(const std::unique_ptr<net::Loop> loop, net::Loop::start("dt-doctor"));
  std::unique_ptr<store::Server> server;  // ends before the loop
  if (machine.serves_store) {
    DT_TRY_VALUE(server, serve(loop.get(), machine, own.host));
  }
  DT_TRY_VALUE(std::shared_ptr<store::Client> client, connect(loop.get(), place, own.host, wait));
  DT_TRY(client->set(key_of(place.rank), encode(own), wait));
  if (place.rank != 0) return std::vector<Report>();
  auto reports = collect(*client, place.world_size, wait);
  client.reset();
  if (server != nullptr) {
    (void)server->wait_empty({Deadline::after_ms(kFarewellMs), nullptr});
  }
  return reports;
}

}  // namespace dt::cli::doctor
