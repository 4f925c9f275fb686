// SPDX-License-Identifier: Apache-2.0
// Who started this process, where it stands, and whether the others can be reached.
#include <algorithm>
#include <cstdio>

#include "cli/doctor/checks.h"
#include "dt/version.h"
#include "net/address.h"
#include "net/host_port.h"

namespace dt::cli::doctor {
namespace {

/// "a; b; c"
std::string joined(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : "; ") + item;
  return text;
}

bool is_alone(const Machine& machine) { return !machine.place || machine.place->world_size == 1; }

Finding not_needed() { return {Grade::kGood, "not needed by one rank alone", {}, {}}; }

std::string unknown_or(int32_t value) { return value < 0 ? "?" : std::to_string(value); }

/// "PMI-1", "PMIx" or what stands for it on one host; empty: an address says where the ranks meet.
std::string exchange_of(const Machine& machine) {
  if (!machine.config.text("store.torch_address").empty()) return {};
  switch (machine.place->exchange) {
    case launch::Exchange::kNone: return {};
    case launch::Exchange::kPmi: return "PMI-1";
    case launch::Exchange::kPmix:
      return machine.place->may_span_hosts() ? "PMIx" : "a socket that PMIX_NAMESPACE names";
  }
  return {};
}

Finding look_at_exchange(const Machine& machine) {
  const std::string name = exchange_of(machine);
  const char* variable =
      machine.place->exchange == launch::Exchange::kPmi ? "PMI_FD" : "PMIX_NAMESPACE";
  if (machine.environment.count(variable) == 0) {
    return {Grade::kBad, "by " + name + ", but " + variable + " is not set in this process",
            "keep the launcher's variables, or set MASTER_ADDR and MASTER_PORT on all ranks", name};
  }
  return {Grade::kGood,
          "by " + name + ": rank 0 tells the others its address, the port is the kernel's choice",
          {},
          name};
}

const InterfaceAddress* interface_of(const Machine& machine, const std::string& address) {
  const auto found = std::find_if(machine.interfaces.begin(), machine.interfaces.end(),
                                  [&](const auto& each) { return each.address == address; });
  return found == machine.interfaces.end() ? nullptr : &*found;
}

std::string described(const InterfaceAddress& each) {
  return each.interface + " " + each.address +
         (each.loopback ? " (loopback)"
          : each.bridge ? " (bridge)"
                        : "");
}

/// The others, which would have been possible; link-local ones of IPv6 are on every interface.
std::string others(const Machine& machine, const InterfaceAddress* chosen) {
  std::string text;
  for (const InterfaceAddress& each : machine.interfaces) {
    if (&each == chosen || each.address.rfind("fe80:", 0) == 0) continue;
    text += (text.empty() ? "" : ", ") + described(each);
  }
  return text;
}

Finding look_at_torch(const Reach& reach, const std::string& at) {
  switch (reach.kind) {
    case Reach::kOpen:
      return {Grade::kGood, at + " answers: the ranks meet in PyTorch's store there", {}, at};
    case Reach::kRefused:
      return {Grade::kBad, at + ": refused, PyTorch's store, in which the ranks meet, is not there",
              "see whether torchrun's agent still runs, and whether the port is right", at};
    default: return {};
  }
}

/// A rank 0 that listens where the kernel chooses.
Finding look_at_free_choice(const Machine& machine, const std::string& way) {
  const std::string told = "the kernel's choice, told by " + way;
  if (machine.store_port.ok()) return {Grade::kGood, told, {}, kNotCompared};
  return {Grade::kBad, told + "; but store.bind cannot be served: " + machine.store_port.message(),
          "give store.bind an address of this host, or leave it out", kNotCompared};
}

}  // namespace

Finding finding_of(const Status& status) {
  const std::string& message = status.message();
  const size_t end = message.rfind("; ");
  if (end == std::string::npos) return {Grade::kBad, message, "see dt config", {}};
  return {Grade::kBad, message.substr(0, end), message.substr(end + 2), {}};
}

Result<Meeting> meeting_of(const Machine& machine) {
  const launch::Place& place = *machine.place;
  const std::string& address = machine.config.text("store.torch_address");
  if (place.store_served) {
    return Meeting{place.master_addr, static_cast<uint16_t>(place.master_port), false};
  }
  if (!address.empty()) {
    const auto found = net::parse_host_port(address);
    if (!found.ok()) return found.status().within("store.torch_address");
    return Meeting{found.value().host, found.value().port, true};
  }
  return Meeting{place.master_addr, static_cast<uint16_t>(place.master_port), place.port_taken};
}

Finding look_at_version(const Machine& machine) {
  return {Grade::kGood, "dt " DT_VERSION " on " + machine.kernel, {}, {}};
}

Finding look_at_settings(const Machine& machine) {
  Finding finding;
  if (!machine.config_error.ok()) {
    finding = finding_of(machine.config_error);
    for (const std::string& warning : machine.config.warnings()) finding.text += "; " + warning;
    return finding;
  }
  for (const Config::Entry& entry : machine.config.entries()) {
    const std::string name = entry.key->name;
    if (name.rfind("job.", 0) == 0 || !machine.config.given(name)) continue;
    finding.text += (finding.text.empty() ? "" : ", ") + name + "=" + entry.value;
  }
  if (finding.text.empty()) finding.text = "defaults only";
  for (const auto& [key, value] : machine.config.equal_keys()) {
    finding.compared += key + "=" + value + " ";
  }
  if (machine.config.warnings().empty()) return finding;
  finding.grade = Grade::kWarning;
  finding.text = joined(machine.config.warnings());
  finding.advice = "see dt config";
  return finding;
}

Finding look_at_launcher(const Machine& machine) {
  if (!machine.place) return finding_of(machine.place_error);
  const launch::Place& place = *machine.place;
  Finding finding;
  finding.compared = place.launcher;
  if (place.launcher == "single") {
    finding.text = "none: this process is a job of one rank";
  } else {
    finding.text = place.launcher;
    const ConfigSource& rank = machine.config.source_of("job.rank");
    const ConfigSource& size = machine.config.source_of("job.world_size");
    finding.text += " (rank from " + rank.where + ", world size from " + size.where + ")";
  }
  if (place.warnings.empty()) return finding;
  finding.grade = Grade::kWarning;
  finding.advice = joined(place.warnings);
  return finding;
}

Finding look_at_place(const Machine& machine) {
  if (!machine.place) return {Grade::kBad, "unknown", "see launcher", {}};
  const launch::Place& place = *machine.place;
  Finding finding;
  finding.text =
      format("rank %d of %d, local rank %s of %s, node %s of %s", place.rank, place.world_size,
             unknown_or(place.local_rank).c_str(), unknown_or(place.local_size).c_str(),
             unknown_or(place.node_rank).c_str(), unknown_or(place.node_count).c_str());
  finding.compared = format("world size %d on %s nodes, attempt %d", place.world_size,
                            unknown_or(place.node_count).c_str(), place.attempt);
  return finding;
}

Finding look_at_interface(const Machine& machine) {
  if (!machine.network_error.ok()) return finding_of(machine.network_error);
  const std::string all = others(machine, nullptr);
  if (is_alone(machine)) return {Grade::kGood, "not needed by one rank alone: " + all, {}, "alone"};
  const bool by_key = !machine.chosen_address.empty();
  const std::string exchange = exchange_of(machine);
  if (!by_key && !exchange.empty()) {
    return {Grade::kGood,
            "by the route to rank 0, whose address comes by " + exchange + "; there are " + all,
            {},
            "by the route"};
  }
  if (!by_key && (!machine.rendezvous || machine.rendezvous->local_address.empty())) {
    return {Grade::kBad,
            "no route to the rendezvous; there are " + all,
            "check the address of the rendezvous and the network of this host",
            {}};
  }
  const std::string& address = by_key ? machine.chosen_address : machine.rendezvous->local_address;
  const InterfaceAddress* chosen = interface_of(machine, address);
  Finding finding;
  finding.text = chosen != nullptr ? described(*chosen) : address;
  if (by_key) {
    finding.text += ", by network.interface";
  } else {
    const auto meeting = meeting_of(machine);
    finding.text += ", by the route to " + (meeting.ok() ? meeting.value().host : "rank 0");
  }
  const std::string rest = others(machine, chosen);
  if (!rest.empty()) finding.text += "; not " + rest;
  finding.compared = chosen != nullptr ? chosen->interface : "unknown";
  const bool one_node = machine.place->node_count == 1;
  if (chosen == nullptr || one_node) {
    finding.compared = one_node ? "one node" : finding.compared;
  } else if (chosen->loopback && machine.place->node_count > 1) {
    finding.grade = Grade::kWarning;  // a test of several nodes on one machine is in order
    finding.advice =
        by_key ? "other hosts cannot be reached by loopback: give network.interface another one"
               : "other hosts cannot be reached by loopback: give the rendezvous an address of "
                 "node 0 that they see";
  } else if (chosen->bridge) {
    finding.grade = Grade::kWarning;
    finding.advice =
        std::string("bridges of containers have the same address on many hosts: give ") +
        (by_key ? "network.interface one of the real network"
                : "the rendezvous an address of the real network");
  }
  return finding;
}

Finding look_at_rendezvous(const Machine& machine) {
  if (is_alone(machine)) return not_needed();
  if (!exchange_of(machine).empty()) return look_at_exchange(machine);
  const auto meeting = meeting_of(machine);
  if (!meeting.ok()) return finding_of(meeting.status());
  if (!machine.rendezvous) return {Grade::kBad, "unknown", "see launcher", {}};
  const Reach& reach = *machine.rendezvous;
  const std::string at = net::host_port_text(meeting.value().host, meeting.value().port);
  const bool there = reach.kind == Reach::kOpen || reach.kind == Reach::kRefused;
  if (meeting.value().torch && there) return look_at_torch(reach, at);
  switch (reach.kind) {
    case Reach::kOpen: return {Grade::kGood, at + " answers", {}, at};
    case Reach::kRefused:
      if (!machine.place->store_served) {
        return {Grade::kGood, at + ": the host answers, rank 0 does not serve there yet", {}, at};
      }
      return {Grade::kBad, at + ": refused, the host is up but nothing listens there",
              "see whether dt run still runs, and whether the port is right", at};
    case Reach::kSilent:
      return {Grade::kBad, at + ": no answer",
              "the host is down, or a firewall drops the packets: open the port between the nodes",
              at};
    case Reach::kUnresolved:
      return {Grade::kBad, at + ": " + reach.detail.substr(0, reach.detail.find(';')),
              "check the name, /etc/hosts and DNS on this host, or give an address", at};
    case Reach::kUnroutable:
      return {Grade::kBad, at + ": " + reach.detail,
              "check the address and the network of this host", at};
  }
  return {};
}

Finding look_at_store_port(const Machine& machine) {
  if (is_alone(machine)) return not_needed();
  const launch::Place& place = *machine.place;
  if (const std::string name = exchange_of(machine); !name.empty()) {
    return look_at_free_choice(machine, name);
  }
  const auto meeting = meeting_of(machine);
  if (!meeting.ok()) return {Grade::kBad, "unknown", "see rendezvous", kNotCompared};
  if (meeting.value().torch) return look_at_free_choice(machine, "PyTorch's store");
  const int port = meeting.value().port;
  Finding finding;
  finding.compared = kNotCompared;
  if (place.store_served) {
    finding.text = format("%d is held by the launcher, which serves the store", port);
    return finding;
  }
  if (!machine.serves_store) {
    finding.text = format("%d is rank 0's to serve", port);
    return finding;
  }
  if (!machine.store_port.ok()) {
    finding.grade = Grade::kBad;
    finding.text =
        format("%d cannot be served here: %s", port, machine.store_port.message().c_str());
    finding.advice =
        "give another MASTER_PORT on all ranks, or end what holds this one "
        "(ss -ltnp), and check that MASTER_ADDR, or store.bind, is this host's";
    return finding;
  }
  finding.text = format("%d is free", port);
  int low = 0;
  int high = 0;
  const std::string range = read_text(machine.roots.proc + "/sys/net/ipv4/ip_local_port_range");
  if (sscanf(range.c_str(), "%d %d", &low, &high) == 2 && port >= low && port <= high) {
    finding.grade = Grade::kWarning;
    finding.text += format(", but any connection of this host may take it (%d-%d)", low, high);
    finding.advice = "choose a port outside of that range";
  }
  return finding;
}

}  // namespace dt::cli::doctor
