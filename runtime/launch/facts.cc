// SPDX-License-Identifier: Apache-2.0
#include "launch/facts.h"

#include <algorithm>

#include "base/world_size.h"
#include "config/value.h"

namespace dt::launch {
namespace {

Status check_below(const Facts& facts, Field index, Field size) {
  const auto& small = facts.at(index);
  const auto& large = facts.at(size);
  if (!small || !large || small->value < large->value) return {};
  return launch_error("out_of_range", format("%s must be less than %s", small->text().c_str(),
                                             large->text().c_str()));
}

Status check_at_most(const Facts& facts, Field part, Field whole) {
  const auto& small = facts.at(part);
  const auto& large = facts.at(whole);
  if (!small || !large || small->value <= large->value) return {};
  return launch_error("out_of_range", format("%s must not be more than %s", small->text().c_str(),
                                             large->text().c_str()));
}

}  // namespace

bool Facts::same_launch(const Facts& other) const {
  return complete() && other.complete() &&
         at(Field::kRank)->value == other.at(Field::kRank)->value &&
         at(Field::kWorldSize)->value == other.at(Field::kWorldSize)->value;
}

void Facts::fill_rendezvous(const Facts& other) {
  if (!master_addr && !at(Field::kMasterPort)) by_convention = other.by_convention;
  if (!at(Field::kMasterPort) && other.at(Field::kMasterPort)) {
    at(Field::kMasterPort) = other.at(Field::kMasterPort);
    // Whether the port is taken belongs to the port.
    port_taken = port_taken || other.port_taken;
    store_served = store_served || other.store_served;
  }
  if (!master_addr) {
    master_addr = other.master_addr;
    address_by_convention = other.address_by_convention;
  }
}

void Facts::fill_blanks(const Facts& other) {
  fill_rendezvous(other);
  for (size_t i = 0; i < kFieldCount; ++i) {
    if (!numbers[i]) numbers[i] = other.numbers[i];
  }
  if (!job_id) job_id = other.job_id;
  if (!exchange_reachable && other.exchange != Exchange::kNone) {
    exchange = other.exchange;
    exchange_reachable = other.exchange_reachable;
  }
  if (no_address.empty()) no_address = other.no_address;
  warnings.insert(warnings.end(), other.warnings.begin(), other.warnings.end());
}

Status read_numbers(Variables& variables, std::span<const NumberRow> rows, Facts& facts) {
  for (const NumberRow& row : rows) {
    if (facts.at(row.field)) continue;
    const int64_t minimum = row.unset == kNoUnset ? row.minimum : std::min(row.minimum, row.unset);
    DT_TRY_VALUE(const std::optional<int32_t> value,
                 variables.integer(row.variable, minimum, row.maximum));
    if (!value || *value == row.unset) continue;
    facts.at(row.field) = NumberFact{*value, variables.shown(row.variable)};
  }
  return {};
}

Result<std::string> parse_host(const std::string& shown, const std::string& given) {
  if (auto host = net::parse_host(given)) return *std::move(host);
  std::string text =
      shown + "=" + config::quoted(given) + "; expected a host name, an IPv4 or an IPv6 address";
  if (std::count(given.begin(), given.end(), ':') == 1) text += " without a port";
  return launch_error("bad_address", text);
}

Result<net::HostPort> parse_host_port(const std::string& shown, const std::string& given) {
  if (auto parsed = net::parse_host_maybe_port(given)) return *std::move(parsed);
  return launch_error("bad_address", shown + "=" + config::quoted(given) +
                                         "; expected host:port with a port from 1 to 65535, or a "
                                         "host alone, an IPv6 address in brackets");
}

Status read_address(Variables& variables, const char* variable, Facts& facts) {
  const std::string* given = variables.get(variable);
  if (given == nullptr || facts.master_addr) return {};
  DT_TRY_VALUE(std::string host, parse_host(variables.shown(variable), *given));
  facts.master_addr = TextFact{std::move(host), variables.shown(variable)};
  return {};
}

Status read_user_rendezvous(Variables& variables, Facts& facts) {
  constexpr NumberRow kPort[] = {{Field::kMasterPort, "MASTER_PORT", 1, 65535, kNoUnset}};
  DT_TRY(read_numbers(variables, kPort, facts));
  DT_TRY(read_address(variables, "MASTER_ADDR", facts));
  const std::string* agent_store = variables.get("TORCHELASTIC_USE_AGENT_STORE");
  facts.port_taken = agent_store != nullptr && (*agent_store == "True" || *agent_store == "1");
  return {};
}

void set_one_per_node(Facts& facts) {
  const std::string& variable = facts.at(Field::kWorldSize)->variable;
  facts.at(Field::kLocalRank) = NumberFact{0, variable};
  facts.at(Field::kLocalSize) = NumberFact{1, variable};
  facts.at(Field::kNodeRank) = facts.at(Field::kRank);
  facts.at(Field::kNodeCount) = facts.at(Field::kWorldSize);
}

Status check_world_size(const NumberFact& size) {
  if (size.value <= kMaxWorldSize) return {};
  return launch_error(
      "out_of_range",
      format("%s; a job has at most %d ranks, because every rank keeps a record of each other "
             "one; set it to the number of processes that are started",
             size.text().c_str(), kMaxWorldSize));
}

Status check_ranges(const Facts& facts) {
  if (facts.at(Field::kWorldSize)) DT_TRY(check_world_size(*facts.at(Field::kWorldSize)));
  DT_TRY(check_below(facts, Field::kRank, Field::kWorldSize));
  DT_TRY(check_below(facts, Field::kLocalRank, Field::kLocalSize));
  DT_TRY(check_below(facts, Field::kNodeRank, Field::kNodeCount));
  DT_TRY(check_below(facts, Field::kLocalRank, Field::kWorldSize));
  DT_TRY(check_at_most(facts, Field::kLocalSize, Field::kWorldSize));
  return check_at_most(facts, Field::kNodeCount, Field::kWorldSize);
}

}  // namespace dt::launch
