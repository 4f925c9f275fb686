// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "net/interfaces.h"
#include "store/join.h"

namespace dt::store {
namespace {

constexpr const char* kAdvice =
    "choose with network.interface (a name, a network as 10.1.0.0/16, or an address), and give a "
    "job.master_addr that is no loopback address";
constexpr size_t kShownMax = 8;

Member member_of(const JoinRecord& record) { return {record.rank, record.host_name, record.pid}; }

std::string who(const JoinRecord& record) { return member_of(record).text(); }

/// "host7 has eth0 10.0.0.1/24, lo 127.0.0.1/8"
std::string interfaces_of(const JoinRecord& record) {
  std::string text = record.host_name + " has ";
  const std::vector<std::string>& all = record.reach.interfaces;
  for (size_t i = 0; i < all.size() && i < kShownMax; ++i) text += (i == 0 ? "" : ", ") + all[i];
  if (all.size() > kShownMax) text += format(" and %zu more", all.size() - kShownMax);
  return text + (all.empty() ? "none" : "");
}

/// Of "eth0 10.0.0.1/24".
std::string_view address_in(std::string_view interface) {
  interface.remove_prefix(std::min(interface.size(), interface.find(' ') + 1));
  return interface.substr(0, interface.find('/'));
}

bool is_loopback(const std::string& address) {
  const auto literal = net::literal_address(address, 0);
  return literal.ok() && net::is_loopback(literal.value());
}

bool spans_hosts(const std::vector<JoinRecord>& records) {
  for (const JoinRecord& record : records) {
    if (record.host_id != records[0].host_id) return true;
  }
  return false;
}

}  // namespace

Status compare_addresses(const std::vector<JoinRecord>& records) {
  if (!spans_hosts(records)) return {};
  // One rank stands for each network stack; cost: ranks and interfaces, not their product.
  std::map<std::string_view, const JoinRecord*> stacks;
  for (const JoinRecord& record : records) {
    if (record.reach.network_id.empty()) continue;
    if (record.reach.address.empty()) {
      return refusal(
          member_of(record),
          who(record) + " cannot be reached by ranks of other hosts: " + record.reach.problem);
    }
    stacks.try_emplace(record.reach.network_id, &record);
  }
  if (stacks.size() < 2) return {};
  std::multimap<std::string_view, const JoinRecord*> owners;
  for (const auto& [network_id, record] : stacks) {
    for (const std::string& each : record->reach.interfaces) {
      owners.emplace(address_in(each), record);
    }
    owners.emplace(record->reach.address, record);
  }
  for (const JoinRecord& record : records) {
    const Reach& reach = record.reach;
    if (reach.network_id.empty()) continue;
    if (is_loopback(reach.address)) {
      const auto other =
          stacks.begin()->first == reach.network_id ? std::next(stacks.begin()) : stacks.begin();
      return refusal(
          member_of(record),
          format("a loopback address reaches no other host: %s is at %s; %s; "
                 "%s; %s",
                 who(record).c_str(), reach.address.c_str(), interfaces_of(record).c_str(),
                 interfaces_of(*other->second).c_str(), kAdvice));
    }
    const auto [begin, end] = owners.equal_range(reach.address);
    for (auto owner = begin; owner != end; ++owner) {
      const JoinRecord& other = *owner->second;
      if (other.reach.network_id == reach.network_id) continue;
      return refusal(member_of(record),
                     format("two hosts have the same address: %s is at %s, and %s (at %s) has that "
                            "address too; %s; %s; %s",
                            who(record).c_str(), reach.address.c_str(), who(other).c_str(),
                            other.reach.address.c_str(), interfaces_of(record).c_str(),
                            interfaces_of(other).c_str(), kAdvice));
    }
  }
  return {};
}

}  // namespace dt::store
