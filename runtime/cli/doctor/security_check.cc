// SPDX-License-Identifier: Apache-2.0
// What would guard the connections of a job here, and where its token comes from. Never the token.
#include "cli/doctor/checks.h"
#include "launch/exchange.h"
#include "net/security.h"

namespace dt::cli::doctor {
namespace {

bool has_several_hosts(const Machine& machine) {
  const auto& place = machine.place;
  if (!place || place->world_size == 1) return false;
  return place->node_count > 1 || (place->node_count < 0 && place->local_size < place->world_size);
}

/// Whether all ranks, or the agents, can only be on this host: they meet on loopback.
bool meets_on_loopback(const Machine& machine) {
  const auto& reach = machine.rendezvous;
  if (!reach) return false;
  for (const InterfaceAddress& each : machine.interfaces) {
    if (each.address == reach->local_address) return each.loopback;
  }
  return false;
}

bool launcher_carries_token(const Machine& machine) {
  if (!machine.place || !machine.config.text("store.torch_address").empty()) return false;
  return machine.place->exchange != launch::Exchange::kNone ||
         launch::exchanges_token(*machine.place, machine.credentials);
}

Finding without_guard(const Machine& machine) {
  Finding finding;
  finding.compared = "none";
  if (machine.credentials.security.open_to_all) {
    finding.text =
        "none, as security.mode says: whoever reaches a port of the job joins, reads and "
        "ends it";
    if (has_several_hosts(machine)) {
      finding.grade = Grade::kWarning;
      finding.advice =
          "unless you trust the network: dt token, its file on every host, and no "
          "security.mode";
    }
    return finding;
  }
  if (launcher_carries_token(machine)) {
    finding.text = "auth, with a token that rank 0 makes and the launcher carries";
    finding.compared = "auth";
    return finding;
  }
  if (!has_several_hosts(machine)) {
    finding.text = "there is no token; jobs on one host need none, those on several do";
    return finding;
  }
  finding.text = "there is no token, so the job listens on loopback only";
  finding.advice = "run dt token, and copy ~/.config/dt/token to every host";
  finding.grade = meets_on_loopback(machine) ? Grade::kWarning : Grade::kBad;
  return finding;
}

}  // namespace

Finding look_at_security(const Machine& machine) {
  if (!machine.credentials_error.ok()) return finding_of(machine.credentials_error);
  const launch::Credentials& credentials = machine.credentials;
  if (!credentials.has_token()) return without_guard(machine);
  std::string mode = net::mode_name(credentials.security.mode);
  // Files may have other names on other hosts. Other tokens would have kept the hosts apart.
  return {Grade::kGood, mode + ", with the token of " + credentials.source, {}, mode};
}

}  // namespace dt::cli::doctor
