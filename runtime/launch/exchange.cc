// SPDX-License-Identifier: Apache-2.0
#include "launch/exchange.h"

#include <dlfcn.h>

#include "launch/facts.h"
#include "launch/host_exchange.h"
#include "launch/pmi.h"
#include "launch/pmix.h"
#include "net/address.h"
#include "net/interfaces.h"

namespace dt::launch {
namespace {

constexpr const char* kByService = "rank 0, by the launcher's service";
constexpr char kBeforeToken = '#';  // in no address

/// Whether MPI was initialized in this process: then MPI is the one client of PMI, and our goodbye
/// would be taken for its.
bool mpi_holds_pmi() {
  using MpiInitialized = int (*)(int*);  // the same in every MPI
  const auto initialized = reinterpret_cast<MpiInitialized>(dlsym(RTLD_DEFAULT, "MPI_Initialized"));
  int flag = 0;
  return initialized != nullptr && initialized(&flag) == 0 && flag != 0;
}

Result<std::string> exchange_text(const Place& place, const Environment& environment,
                                  const std::string& mine, const Wait& wait) {
  const std::string size = format("the world size is %d", place.world_size);
  Variables variables(environment);
  if (place.exchange == Exchange::kPmix) {
    const std::string* job = variables.get("PMIX_NAMESPACE");
    if (job == nullptr) return no_rendezvous(place.launcher, size, place.master_addr);
    if (!place.may_span_hosts()) {
      return host_exchange(*job, place.rank, place.world_size, mine, wait);
    }
    return pmix_exchange(place.rank, mine, wait, pmix_libraries(environment));
  }
  DT_TRY_VALUE(const auto fd, variables.integer("PMI_FD", 0, INT32_MAX));
  if (!fd) return no_rendezvous(place.launcher, size, place.master_addr);
  if (mpi_holds_pmi()) {
    return launch_error(
        "no_rendezvous",
        "MPI_Init was called in this process, and the launcher's PMI service knows "
        "one client per process; set MASTER_ADDR and MASTER_PORT to the host of rank "
        "0 and a free port there");
  }
  return PmiClient(*fd, wait).exchange(place.rank, mine);
}

}  // namespace

Result<StoreAddress> exchange_address(const Place& place, const Environment& environment,
                                      const StoreAddress& mine, const Wait& wait) {
  std::string text = place.rank == 0 ? net::host_port_text(mine.host, mine.port) : "";
  if (mine.token) text += kBeforeToken + mine.token->text();
  DT_TRY_VALUE(std::string got, exchange_text(place, environment, text, wait));
  net::wipe(text.data(), text.size());
  std::optional<net::Token> token;
  if (const size_t at = got.find(kBeforeToken); at != std::string::npos) {
    auto read = net::Token::from_text(std::string_view(got).substr(at + 1));
    net::wipe(got.data() + at, got.size() - at);
    got.resize(at);
    if (!read.ok()) return read.status().within("what rank 0 published");
    token = std::move(read).value();
  }
  DT_TRY_VALUE(net::HostPort parsed, parse_host_port("the address that rank 0 published", got));
  if (parsed.port == 0) {
    return launch_error("bad_address",
                        "rank 0 published no port; its library is of another version: "
                        "start all ranks from the same files");
  }
  return StoreAddress{std::move(parsed.host), parsed.port, std::move(token)};
}

bool exchanges_token(const Place& place, const Credentials& credentials) {
  return place.token_exchange != Exchange::kNone && !place.store_served &&
         !credentials.has_token() && credentials.takes_token() &&
         !net::means_loopback(place.master_addr);
}

Status exchange_token(const Place& place, const Environment& environment, Credentials* credentials,
                      const Wait& wait) {
  if (!exchanges_token(place, *credentials)) return {};
  StoreAddress mine{place.master_addr, static_cast<uint16_t>(place.master_port), {}};
  if (place.rank == 0) {
    DT_TRY_VALUE(net::Token token, net::Token::random());
    mine.token = std::move(token);
  }
  Place by = place;
  by.exchange = place.token_exchange;
  // Named for this program: it lacks a token, as it did before.
  if (by.exchange == Exchange::kPmi && mpi_holds_pmi()) return {};
  const Result<StoreAddress> got = exchange_address(by, environment, mine, wait);
  if (!got.ok() && got.status().code() == Code::kTimeout) {
    return Status(Code::kTimeout,
                  got.status().message() +
                      "; this rank has no token and waits for one that rank 0 makes: if other "
                      "ranks have one, give it to all (DT_TOKEN_FILE, ~/.config/dt/token)");
  }
  DT_TRY(got.status());
  if (got.value().token) credentials->take(*got.value().token, kByService);
  return {};
}

}  // namespace dt::launch
