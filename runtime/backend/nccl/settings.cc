// SPDX-License-Identifier: Apache-2.0
#include "backend/nccl/settings.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "backend/nccl/library.h"

namespace dt::nccl {
namespace {

/// A key whose value goes to NCCL, which decides where it has its default.
struct Row {
  const char* key;
  const char* variable = nullptr;  // null: "NCCL_" and the key's last word; empty: none
  int32_t Config::*field = nullptr;
  int32_t since = 0;  // of the field
};

constexpr char kNetName[] = "nccl.net_name";

constexpr Row kRows[] = {
    {"nccl.max_ctas", nullptr, &Config::max_ctas, 21700},
    {"nccl.min_ctas", nullptr, &Config::min_ctas, 21700},
    {"nccl.nvls_ctas", "NCCL_NVLS_NCHANNELS", &Config::nvls_ctas, 22700},
    {"nccl.cga_cluster_size", nullptr, &Config::cga_cluster_size, 21700},
    {"nccl.cta_policy", nullptr, &Config::cta_policy, 22700},
    {"nccl.nchannels_per_net_peer", nullptr, &Config::channels_per_net_peer, 22800},
    {"nccl.nvlink_centric_sched", "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE",
     &Config::nvlink_centric_sched, 22800},
    {"nccl.collnet_enable", nullptr, &Config::collnet_enable, 22700},
    {kNetName, "NCCL_NET"},
    {"nccl.traffic_class", "", &Config::traffic_class, 22600},
    {"nccl.socket_ifname"},
    {"nccl.socket_family"},
    {"nccl.ib_hca"},
    {"nccl.ib_gid_index"},
    {"nccl.ib_timeout"},
    {"nccl.ib_retry_cnt"},
    {"nccl.ib_tc"},
    {"nccl.ib_sl"},
    {"nccl.ib_qps_per_connection"},
    {"nccl.ib_disable"},
    {"nccl.net_plugin"},
    {"nccl.net_gdr_level"},
    {"nccl.cross_nic"},
    {"nccl.oob_net_enable"},
    {"nccl.topo_file"},
    {"nccl.ras_addr"},
    {"nccl.ras_enable"},
    {"nccl.ignore_cpu_affinity"},
    {"nccl.cumem_enable"},
    {"nccl.mnnvl_enable"},
    {"nccl.nvls_enable"},
    {"nccl.buffsize"},
    {"nccl.nthreads"},
    {"nccl.algo"},
    {"nccl.proto"},
    {"nccl.runtime_connect"},
    {"nccl.launch_order_implicit"},
    {"nccl.pxn_disable"},
    {"nccl.graph_mixing_support"},
    {"nccl.debug"},
    {"nccl.debug_subsys"},
    {"nccl.debug_file"},
    {"nccl.debug_timestamp_format"},
    {"nccl.p2p_disable"},
    {"nccl.p2p_level"},
    {"nccl.shm_disable"},
    {"nccl.check_mode"},
    {"nccl.profiler_plugin"},
    {"nccl.tuner_plugin"},
};

/// Variables that would work against dt.
struct Refused {
  const char* name;
  const char* why;
  bool fatal;
};
constexpr Refused kRefused[] = {
    {"NCCL_COMM_BLOCKING", "it makes calls of NCCL wait for peers, and no deadline of dt holds",
     true},
    {"NCCL_COMM_ID",
     "it gives every communicator the same id, while dt makes one for each and passes it on", true},
    {"NCCL_HOSTID",
     "it makes NCCL believe that ranks are on other hosts than they are; it is for tests", false},
    {"NCCL_LAUNCH_MODE",
     "it makes the GPUs of a process wait for each other, which dt's threads do not expect", false},
    {"NCCL_CONF_FILE",
     "it names a file of settings that dt neither shows nor compares between ranks", false},
};

std::string variable_of(const Row& row) {
  if (row.variable != nullptr) return row.variable;
  std::string name = "NCCL_";
  for (const char* c = row.key + std::string_view("nccl.").size(); *c != '\0'; ++c) {
    name += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  return name;
}

/// As NCCL writes it; empty: NCCL decides.
std::string value_of(const Row& row, const config::Key& key, const std::string& text) {
  if (text == key.fallback) return {};
  if (text == "true") return "1";
  if (text == "false") return "0";
  if (row.field == &Config::cta_policy) {
    return text == "zero" ? "2" : text == "efficiency" ? "1" : "0";
  }
  return text;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// A line of [nccl.env].
Status check_free(const std::string& name) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::kConfig, "nccl.env holds " + name + ": " + why);
  };
  if (name.rfind("NCCL_", 0) != 0) return refuse("only NCCL_* variables can be set there");
  for (const Refused& each : kRefused) {
    if (name == each.name) return refuse(std::string(each.why) + "; remove it");
  }
  for (const Row& row : kRows) {
    if (name == variable_of(row)) return refuse(std::string("write it as ") + row.key);
  }
  for (const char* end : {"_PLUGIN", "_PATH", "_LIB", "_LIBRARY", "_DUMP_FILE"}) {
    if (!ends_with(name, end)) continue;
    return refuse(
        "it names a file to load or to write, which a dt.toml may not; export it instead");
  }
  return {};
}

Status check_ctas(const Config& fields) {
  if (fields.min_ctas == Config::kUnset) return {};
  if (fields.max_ctas == Config::kUnset) {
    return Status(Code::kConfig, format("nccl.min_ctas is %d without nccl.max_ctas, which NCCL "
                                        "refuses; set both, or only nccl.max_ctas",
                                        fields.min_ctas));
  }
  if (fields.min_ctas <= fields.max_ctas) return {};
  return Status(Code::kConfig, format("nccl.min_ctas is %d, more than nccl.max_ctas, which is %d; "
                                      "lower the first or raise the second",
                                      fields.min_ctas, fields.max_ctas));
}

std::string origin(const Variable& variable) {
  return "(" + variable.key + ", " + variable.source + ")";
}

std::string shell_word(const std::string& text) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("_-+=.,:/@%^").find(c) != std::string_view::npos;
  };
  if (!text.empty() && std::all_of(text.begin(), text.end(), plain)) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

Result<Settings> Settings::read(const dt::Config& config) {
  Settings settings;
  settings.inherited_wins_ = config.text("nccl.inherit") == "override";
  settings.may_write_ = config.boolean("nccl.setenv");
  settings.net_name_ = config.text(kNetName);
  for (const Row& row : kRows) {
    const config::Key* key = config::find_key(config::keys(), row.key);
    DT_TRY_VALUE(const std::string text, config.value_text(row.key));
    const std::string value = value_of(row, *key, text);
    if (value.empty()) continue;
    if (row.field != nullptr) settings.fields_.*row.field = std::stoi(value);
    settings.variables_.push_back(
        {variable_of(row), value, row.key, config.source_of(row.key).where,
         row.field != nullptr || row.key == std::string_view(kNetName), row.since});
  }
  DT_TRY(check_ctas(settings.fields_));
  for (const auto& [name, value] : config.variables("nccl.env")) {
    DT_TRY(check_free(name));
    settings.variables_.push_back(
        {name, value, "nccl.env", config.source_of("nccl.env").where, false, 0});
  }
  std::sort(settings.variables_.begin(), settings.variables_.end(),
            [](const Variable& a, const Variable& b) { return a.name < b.name; });
  return settings;
}

Config Settings::fields() const {
  Config fields = fields_;
  if (!net_name_.empty()) fields.net_name = net_name_.c_str();
  return fields;
}

std::vector<Difference> differences(const Settings& settings, const Environment& environment) {
  std::vector<Difference> found;
  for (const Variable& each : settings.variables()) {
    if (each.name.empty()) continue;  // only a field
    const auto inherited = environment.find(each.name);
    if (inherited == environment.end()) {
      if (!each.in_fields) found.push_back({each, std::nullopt});
    } else if (inherited->second != each.value) {
      found.push_back({each, inherited->second});
    }
  }
  return found;
}

std::vector<Variable> to_set(const Settings& settings, const Environment& environment) {
  std::vector<Variable> variables;
  for (const Difference& each : differences(settings, environment)) {
    if (!each.inherited || !settings.inherited_wins()) variables.push_back(each.wanted);
  }
  return variables;
}

std::string export_line(const std::vector<Variable>& variables) {
  std::string line = "export";
  for (const Variable& each : variables) line += " " + each.name + "=" + shell_word(each.value);
  return line;
}

std::string replaced_text(const Settings& settings, const Environment& environment) {
  std::string text;
  if (settings.inherited_wins()) return text;
  for (const Difference& each : differences(settings, environment)) {
    if (!each.inherited) continue;
    text += (text.empty() ? "" : ", ") + each.wanted.name + "=" + each.wanted.value + " " +
            origin(each.wanted) + " replaces the inherited " + shell_word(*each.inherited);
  }
  if (!text.empty()) text += "; unset it, or keep it by nccl.inherit = \"override\"";
  return text;
}

Plan plan_environment(const Settings& settings, const Environment& environment) {
  Plan plan;
  const std::vector<Variable> wanted = to_set(settings, environment);
  if (wanted.empty()) return plan;
  if (settings.may_write()) {
    plan.write = wanted;
    return plan;
  }
  std::string which;
  for (const Variable& each : wanted) {
    const auto inherited = environment.find(each.name);
    which += (which.empty() ? "" : ", ") + each.name + " is ";
    which += inherited == environment.end() ? "not set" : shell_word(inherited->second);
    which += " instead of " + shell_word(each.value) + " " + origin(each);
  }
  plan.warning =
      "NCCL settings are not in the environment, from which alone NCCL takes them: " + which +
      "; before the program starts: " + export_line(wanted) +
      "; or start it with dt run, or set nccl.setenv = true";
  return plan;
}

std::vector<Obstacle> obstacles(const Environment& environment) {
  std::vector<Obstacle> found;
  for (const Refused& each : kRefused) {
    const auto variable = environment.find(each.name);
    if (variable == environment.end() || variable->second.empty()) continue;
    // What dt wants anyway.
    if (variable->first == "NCCL_COMM_BLOCKING" && variable->second == "0") continue;
    found.push_back(
        {variable->first + "=" + variable->second + " is set: " + each.why + "; unset it",
         each.fatal});
  }
  return found;
}

std::vector<std::string> ignored_by(const Settings& settings, int32_t version) {
  std::vector<std::string> ignored;
  for (const Variable& each : settings.variables()) {
    if (version < each.since)
      ignored.push_back(each.key + " needs NCCL " + version_text(each.since));
  }
  return ignored;
}

}  // namespace dt::nccl
