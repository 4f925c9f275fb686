// SPDX-License-Identifier: Apache-2.0
#include "backend/nccl/settings.h"

#include <doctest/doctest.h>

#include <set>

using dt::Code;
using dt::Environment;
using dt::nccl::Settings;
using dt::nccl::Variable;

namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

dt::Config config_with(const Pairs& values) {
  dt::Config config;
  for (const auto& [key, value] : values) REQUIRE(config.set("nccl." + key, value).ok());
  return config;
}

Settings settings_of(const Pairs& values) {
  auto settings = Settings::read(config_with(values));
  REQUIRE(settings.ok());
  return std::move(settings).value();
}

std::string error_of(const Pairs& values) {
  const auto settings = Settings::read(config_with(values));
  REQUIRE_FALSE(settings.ok());
  CHECK(settings.status().code() == Code::kConfig);
  return settings.status().message();
}

Pairs pairs_of(const std::vector<Variable>& variables) {
  Pairs pairs;
  for (const Variable& each : variables) pairs.emplace_back(each.name, each.value);
  return pairs;
}

}  // namespace

TEST_CASE("by default NCCL decides everything") {
  const Settings settings = settings_of({});
  CHECK(settings.variables().empty());
  CHECK_FALSE(settings.inherited_wins());
  CHECK_FALSE(settings.may_write());
  const dt::nccl::Config fields = settings.fields();
  CHECK(fields.max_ctas == dt::nccl::Config::kUnset);
  CHECK(fields.nvlink_centric_sched == dt::nccl::Config::kUnset);
  CHECK(fields.net_name == nullptr);
  CHECK(to_set(settings, {{"NCCL_ALGO", "Tree"}, {"NCCL_MAX_CTAS", "3"}}).empty());
}

TEST_CASE("every key goes somewhere: to NCCL, or it is dt's own") {
  const std::set<std::string> own = {"nccl.library",
                                     "nccl.register",
                                     "nccl.stream_priority",
                                     "nccl.init_timeout_ms",
                                     "nccl.setenv",
                                     "nccl.inherit",
                                     "nccl.env"};
  std::set<std::string> names;
  size_t keys = 0;
  for (const dt::config::Key& key : dt::config::keys()) {
    const std::string name = key.name;
    if (name.rfind("nccl.", 0) != 0 || own.count(name) == 1) continue;
    ++keys;
    CAPTURE(name);
    std::string value = "7";
    if (key.type == dt::config::Type::kEnum) {
      const std::string choices = key.choices;
      value = choices.substr(choices.rfind(' ') + 1);
    }
    Pairs values = {{name.substr(5), value}};
    if (name == "nccl.min_ctas") values.push_back({"max_ctas", "64"});
    if (name == "nccl.cross_nic") values = {{"cross_nic", "2"}};
    const Settings settings = settings_of(values);
    size_t found = 0;
    for (const Variable& each : settings.variables()) {
      if (each.key != name) continue;
      ++found;
      CHECK_FALSE(each.value.empty());
      CHECK(each.source == "call");
      CHECK((each.name.empty() || names.insert(each.name).second));
    }
    CHECK(found == 1);
  }
  CHECK(keys > 45);
}

TEST_CASE("fields of the config, with the variables that would win over them") {
  const Settings settings = settings_of({{"max_ctas", "16"},
                                         {"min_ctas", "4"},
                                         {"cga_cluster_size", "0"},
                                         {"cta_policy", "efficiency"},
                                         {"collnet_enable", "false"},
                                         {"nvlink_centric_sched", "true"},
                                         {"net_name", "Socket"},
                                         {"traffic_class", "3"},
                                         {"nvls_ctas", "6"},
                                         {"nchannels_per_net_peer", "2"}});
  const Settings copy = settings;
  const dt::nccl::Config fields = copy.fields();
  CHECK(fields.max_ctas == 16);
  CHECK(fields.min_ctas == 4);
  CHECK(fields.cga_cluster_size == 0);
  CHECK(fields.cta_policy == 1);
  CHECK(fields.collnet_enable == 0);
  CHECK(fields.nvlink_centric_sched == 1);
  CHECK(std::string(fields.net_name) == "Socket");
  CHECK(fields.traffic_class == 3);
  CHECK(fields.nvls_ctas == 6);
  CHECK(fields.channels_per_net_peer == 2);
  CHECK(fields.blocking == dt::nccl::Config::kUnset);
  CHECK(to_set(settings, {}).empty());
  // Other values in the environment would win.
  const Environment other = {
      {"NCCL_MAX_CTAS", "8"}, {"NCCL_NET", "Socket"}, {"NCCL_NVLS_NCHANNELS", "1"}};
  CHECK(pairs_of(to_set(settings, other)) ==
        Pairs{{"NCCL_MAX_CTAS", "16"}, {"NCCL_NVLS_NCHANNELS", "6"}});
  CHECK(ignored_by(settings, 22809).empty());
  CHECK(ignored_by(settings, 22602) ==
        std::vector<std::string>{
            "nccl.collnet_enable needs NCCL 2.27.0", "nccl.cta_policy needs NCCL 2.27.0",
            "nccl.nchannels_per_net_peer needs NCCL 2.28.0",
            "nccl.nvlink_centric_sched needs NCCL 2.28.0", "nccl.nvls_ctas needs NCCL 2.27.0"});
}

TEST_CASE("variables are sorted, and booleans are numbers") {
  const Settings settings = settings_of({{"socket_ifname", "=eth0"},
                                         {"ib_disable", "true"},
                                         {"nvls_enable", "false"},
                                         {"algo", "Ring"},
                                         {"debug", "WARN"},
                                         {"buffsize", "4194304"},
                                         {"env", "NCCL_NET_SHARED_BUFFERS=0 NCCL_CROSS=1"}});
  CHECK(pairs_of(to_set(settings, {})) == Pairs{{"NCCL_ALGO", "Ring"},
                                                {"NCCL_BUFFSIZE", "4194304"},
                                                {"NCCL_CROSS", "1"},
                                                {"NCCL_DEBUG", "WARN"},
                                                {"NCCL_IB_DISABLE", "1"},
                                                {"NCCL_NET_SHARED_BUFFERS", "0"},
                                                {"NCCL_NVLS_ENABLE", "0"},
                                                {"NCCL_SOCKET_IFNAME", "=eth0"}});
}

TEST_CASE("dt.toml wins over inherited values, or they over it") {
  const Environment inherited = {{"NCCL_ALGO", "Tree it"}, {"NCCL_DEBUG", "WARN"}};
  Pairs values = {{"algo", "Ring"}, {"proto", "LL"}, {"debug", "WARN"}};
  const Settings settings = settings_of(values);
  const auto found = differences(settings, inherited);
  REQUIRE(found.size() == 2);
  CHECK(found[0].wanted.name == "NCCL_ALGO");
  CHECK(found[0].inherited == "Tree it");
  CHECK_FALSE(found[1].inherited.has_value());
  CHECK(pairs_of(to_set(settings, inherited)) ==
        Pairs{{"NCCL_ALGO", "Ring"}, {"NCCL_PROTO", "LL"}});
  CHECK(replaced_text(settings, inherited) ==
        "NCCL_ALGO=Ring (nccl.algo, call) replaces the inherited 'Tree it'; unset it, or keep it "
        "by nccl.inherit = \"override\"");
  CHECK(replaced_text(settings, {}).empty());
  values.push_back({"inherit", "override"});
  const Settings yielding = settings_of(values);
  CHECK(pairs_of(to_set(yielding, inherited)) == Pairs{{"NCCL_PROTO", "LL"}});
  CHECK(replaced_text(yielding, inherited).empty());
}

TEST_CASE("dt_init writes only where it may, and else prints the line to export") {
  const Environment inherited = {{"NCCL_ALGO", "Tree"}};
  Pairs values = {{"algo", "Ring"}, {"debug_file", "/tmp/it's here"}};
  dt::nccl::Plan plan = plan_environment(settings_of(values), inherited);
  CHECK(plan.write.empty());
  CHECK(
      plan.warning ==
      "NCCL settings are not in the environment, from which alone NCCL takes them: NCCL_ALGO is "
      "Tree instead of Ring (nccl.algo, call), NCCL_DEBUG_FILE is not set instead of '/tmp/it'\\''"
      "s here' (nccl.debug_file, call); before the program starts: export NCCL_ALGO=Ring "
      "NCCL_DEBUG_FILE='/tmp/it'\\''s here'; or start it with dt run, or set nccl.setenv = true");
  values.push_back({"setenv", "true"});
  plan = plan_environment(settings_of(values), inherited);
  CHECK(plan.warning.empty());
  CHECK(pairs_of(plan.write) ==
        Pairs{{"NCCL_ALGO", "Ring"}, {"NCCL_DEBUG_FILE", "/tmp/it's here"}});
  plan = plan_environment(settings_of({{"algo", "Tree"}}), inherited);
  CHECK(plan.warning.empty());
  CHECK(plan.write.empty());
}

TEST_CASE("min_ctas needs max_ctas and may not exceed it") {
  CHECK(error_of({{"min_ctas", "4"}}) ==
        "nccl.min_ctas is 4 without nccl.max_ctas, which NCCL refuses; set both, or only "
        "nccl.max_ctas");
  CHECK(error_of({{"min_ctas", "4"}, {"max_ctas", "2"}}) ==
        "nccl.min_ctas is 4, more than nccl.max_ctas, which is 2; lower the first or raise the "
        "second");
  settings_of({{"min_ctas", "4"}, {"max_ctas", "4"}});
}

TEST_CASE("the free table refuses what works against dt, and says why") {
  for (const char* name : {"NCCL_COMM_BLOCKING", "NCCL_COMM_ID", "NCCL_HOSTID", "NCCL_LAUNCH_MODE",
                           "NCCL_CONF_FILE"}) {
    const std::string error = error_of({{"env", std::string(name) + "=1"}});
    CHECK(error.find(std::string("nccl.env holds ") + name + ": it ") == 0);
    CHECK(error.find("; remove it") != std::string::npos);
  }
  CHECK(error_of({{"env", "NCCL_ALGO=Ring"}}) == "nccl.env holds NCCL_ALGO: write it as nccl.algo");
  CHECK(error_of({{"env", "NCCL_NET=IB"}}) == "nccl.env holds NCCL_NET: write it as nccl.net_name");
  CHECK(error_of({{"env", "LD_PRELOAD=x"}}) ==
        "nccl.env holds LD_PRELOAD: only NCCL_* variables can be set there");
  for (const char* name : {"NCCL_ENV_PLUGIN", "NCCL_CUDA_PATH", "NCCL_TOPO_DUMP_FILE"}) {
    CHECK(error_of({{"env", std::string(name) + "=x"}}).find("export it instead") !=
          std::string::npos);
  }
}

TEST_CASE("inherited variables that work against dt are told") {
  CHECK(dt::nccl::obstacles({{"NCCL_DEBUG", "INFO"}, {"NCCL_COMM_BLOCKING", "0"}}).empty());
  const auto found = dt::nccl::obstacles({{"NCCL_COMM_BLOCKING", "1"}, {"NCCL_HOSTID", "x"}});
  REQUIRE(found.size() == 2);
  CHECK(found[0].fatal);
  CHECK(found[0].text ==
        "NCCL_COMM_BLOCKING=1 is set: it makes calls of NCCL wait for peers, and no deadline of dt "
        "holds; unset it");
  CHECK_FALSE(found[1].fatal);
}
