// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/cluster.h"

#include <unistd.h>

#include "job/store_options.h"
#include "job/torch_meeting.h"
#include "launch/credentials.h"
#include "launch/exchange.h"
#include "net/loop.h"
#include "store/client.h"
#include "store/server.h"

namespace dt::cli::doctor {
namespace {

constexpr int64_t kAnswerMs = 10'000;    // for a store that has answered before
constexpr int64_t kFarewellMs = 2'000;   // for the answers to the other ranks' last words
constexpr size_t kReportsPerCall = 512;  // well below what one answer may hold

std::string key_of(int64_t rank) { return "dt.doctor/" + std::to_string(rank); }

/// How this rank and the others come together.
struct Together {
  std::unique_ptr<net::Loop> loop;
  job::TorchMeeting torch;
  std::unique_ptr<store::Server> server;  // rank 0's, unless the launcher serves
  launch::StoreAddress store;
  launch::Credentials credentials;
};

Status serve(const Machine& machine, const std::string& host, const std::string& bind_address,
             Together* together) {
  const launch::Place& place = *machine.place;
  store::ServerOptions options;
  options.job_id = place.job_id;
  options.attempt = place.attempt;
  options.world_size = place.world_size;
  const std::string& bind = machine.config.text("store.bind");
  options.bind_address = bind.empty() ? bind_address : bind;
  options.port = together->store.port;
  options.server_rank = 0;
  options.host = host;
  options.pid = getpid();
  options.security = together->credentials.security;
  DT_TRY_VALUE(together->server, store::Server::start(together->loop.get(), options));
  together->store.port = together->server->port();
  return {};
}

Status meet_by_exchange(const Machine& machine, const std::string& host, const Wait& wait,
                        Together* together) {
  const launch::Place& place = *machine.place;
  if (place.rank == 0) {
    DT_TRY_VALUE(together->store.host,
                 launch::own_address(place, machine.environment,
                                     machine.config.text("network.interface"), wait));
    if (together->credentials.takes_token()) {
      DT_TRY_VALUE(together->store.token, net::Token::random());
      together->credentials.take(*together->store.token, "rank 0");
    }
    DT_TRY(serve(machine, host, together->store.host, together));
  }
  DT_TRY_VALUE(together->store,
               launch::exchange_address(place, machine.environment, together->store, wait));
  if (together->store.token && together->credentials.takes_token()) {
    together->credentials.take(*together->store.token, "rank 0");
  }
  return {};
}

Status meet_by_torch(const Machine& machine, const std::string& host, const Wait& wait,
                     Together* together) {
  if (!machine.serves_store) {
    DT_TRY_VALUE(const net::HostPort found, together->torch.find(wait));
    together->store = {found.host, found.port, {}};
    return {};
  }
  const job::TorchMeeting::Serving serving = together->torch.serving(machine.config);
  DT_TRY(serve(machine, host, serving.bind_address, together));
  together->store.host = serving.host;
  return together->torch.publish(serving.host, together->store.port, wait);
}

/// As a job of these ranks does it, but what they are set up for need not agree.
Status meet(const Machine& machine, const std::string& host, const Wait& wait, Together* together) {
  const launch::Place& place = *machine.place;
  DT_TRY_VALUE(together->credentials,
               launch::find_credentials(machine.config, machine.environment,
                                        place.exchange != launch::Exchange::kNone ||
                                            place.token_exchange != launch::Exchange::kNone));
  DT_TRY_VALUE(together->loop, net::Loop::start("dt-doctor"));
  DT_TRY_VALUE(together->torch, job::TorchMeeting::join(together->loop.get(), machine.config, place,
                                                        std::make_shared<Logger>(), wait));
  if (together->torch.finds_store()) return meet_by_torch(machine, host, wait, together);
  if (place.exchange != launch::Exchange::kNone) {
    return meet_by_exchange(machine, host, wait, together);
  }
  DT_TRY(launch::exchange_token(place, machine.environment, &together->credentials, wait));
  together->store = {place.master_addr, static_cast<uint16_t>(launch::store_port(place)), {}};
  if (!machine.serves_store) return {};
  DT_TRY_VALUE(const std::string bind, job::bind_address(machine.config, place));
  return serve(machine, host, bind, together);
}

Result<std::shared_ptr<store::Client>> connect(const Together& together, const launch::Place& place,
                                               const std::string& host, const Wait& wait) {
  store::ClientOptions options;
  options.host = together.store.host;
  options.port = together.store.port;
  options.job_id = place.job_id;
  options.attempt = place.attempt;
  options.host_name = host;
  options.pid = getpid();
  options.security = together.credentials.security;
  return store::Client::connect(together.loop.get(), options, wait);
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
  Together together;
  DT_TRY(meet(machine, own.host, wait, &together));
  DT_TRY_VALUE(std::shared_ptr<store::Client> client, connect(together, place, own.host, wait));
  DT_TRY(client->set(key_of(place.rank), encode(own), wait));
  if (place.rank != 0) return std::vector<Report>();
  auto reports = collect(*client, place.world_size, wait);
  client.reset();
  if (together.torch.finds_store()) {
    together.torch.withdraw({Deadline::after_ms(kFarewellMs), nullptr});
  }
  if (together.server != nullptr) {
    (void)together.server->wait_empty({Deadline::after_ms(kFarewellMs), nullptr});
  }
  return reports;
}

}  // namespace dt::cli::doctor
