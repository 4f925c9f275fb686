// SPDX-License-Identifier: Apache-2.0
#include "backend/nccl/conf.h"

#include <doctest/doctest.h>

#include "../cli/pretended_tree.h"

using dt::Environment;
using dt::nccl::ConfLine;
using dt::nccl::ConfPlaces;
using dt::nccl::Settings;
using dt::test::PretendedTree;
using namespace dt::nccl;

namespace {

struct Files {
  PretendedTree tree;
  ConfPlaces places{tree.root() + "/home", tree.root() + "/etc/nccl.conf"};

  std::vector<ConfLine> read(const Environment& environment = {}) const {
    return read_conf(environment, places);
  }
  std::string at(const std::string& name) const { return tree.root() + "/" + name; }
};

Settings settings_with(const std::vector<std::pair<std::string, std::string>>& values = {}) {
  dt::Config config;
  for (const auto& [key, value] : values) REQUIRE(config.set(key, value).ok());
  auto settings = Settings::read(config);
  REQUIRE(settings.ok());
  return std::move(settings).value();
}

std::string text_of(const std::vector<dt::nccl::Variable>& variables) {
  std::string text;
  for (const auto& each : variables) text += each.name + "=" + each.value + " ";
  return text;
}

}  // namespace

TEST_CASE("without files there is nothing to say") {
  const Files files;
  CHECK(files.read().empty());
  CHECK(conf_text(settings_with({{"nccl.algo", "Ring"}}), {{"NCCL_PROTO", "LL"}}, {}).empty());
  CHECK_FALSE(conf_places().home.empty());
  CHECK(conf_places().system == "/etc/nccl.conf");
}

TEST_CASE("the user's file goes before the system's, a named one before both") {
  Files files;
  files.tree.write("etc/nccl.conf", "NCCL_ALGO=Tree\nNCCL_PROTO=LL");
  files.tree.write("home/.nccl.conf", "# NCCL_DEBUG=INFO\n\nno line\nNCCL_ALGO=Ring\n");
  files.tree.write("named", "NCCL_ALGO=NVLS=x\nNCCL_ALGO=again\n");
  const auto lines = files.read();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].name == "NCCL_ALGO");
  CHECK(lines[0].value == "Ring");
  CHECK(where(lines[0]) == files.at("home/.nccl.conf:4"));
  CHECK(lines[1].value == "LL");
  CHECK(where(lines[1]) == files.at("etc/nccl.conf:2"));
  const auto named = files.read({{"NCCL_CONF_FILE", files.at("named")}});
  REQUIRE(named.size() == 2);
  CHECK(named[0].value == "NVLS=x");
  CHECK(named[1].name == "NCCL_PROTO");
  CHECK(files.read({{"NCCL_CONF_FILE", files.at("none")}}).size() == 2);  // of the system's
  CHECK(files.read({{"NCCL_CONF_FILE", ""}}).size() == 2);
}

TEST_CASE("a line that says the same as a setting or the environment is no news") {
  Files files;
  files.tree.write("etc/nccl.conf", "NCCL_ALGO=Ring\nNCCL_PROTO=LL\nNCCL_DEBUG=INFO\n");
  CHECK(conf_text(settings_with({{"nccl.algo", "Ring"}}), {{"NCCL_PROTO", "LL"}}, files.read())
            .empty());
}

TEST_CASE("a line at odds with a setting or the environment is told with its place") {
  Files files;
  files.tree.write("etc/nccl.conf", "NCCL_ALGO=Tree\nNCCL_PROTO=LL\nNCCL_MAX_CTAS=4\n");
  const Settings settings = settings_with({{"nccl.algo", "Ring"}, {"nccl.max_ctas", "8"}});
  const Environment environment = {{"NCCL_PROTO", "Simple"}, {"NCCL_ALGO", "Ring"}};
  const auto found = conf_obstacles(settings, environment, files.read());
  REQUIRE(found.size() == 3);
  CHECK(found[0].text == files.at("etc/nccl.conf:1") +
                             ": NCCL_ALGO=Tree does not count, as the environment says Ring; "
                             "remove one of the two");
  CHECK(found[1].text == files.at("etc/nccl.conf:2") +
                             ": NCCL_PROTO=LL does not count, as the environment says Simple; "
                             "remove one of the two");
  // A field of ncclConfig_t, which NCCL's variables win over.
  CHECK(found[2].text == files.at("etc/nccl.conf:3") +
                             ": NCCL_MAX_CTAS=4 goes before nccl.max_ctas, which wants 8 (call); "
                             "remove one of the two");
  for (const auto& each : found) CHECK_FALSE(each.fatal);
  CHECK(conf_text(settings, environment, files.read()).rfind("NCCL reads a file of its own: ", 0) ==
        0);
}

TEST_CASE("what dt refuses in the environment it refuses in a file, unless the environment wins") {
  Files files;
  files.tree.write("etc/nccl.conf", "NCCL_HOSTID=x\nNCCL_COMM_BLOCKING=1\n");
  const auto found = conf_obstacles(settings_with(), {}, files.read());
  REQUIRE(found.size() == 2);
  CHECK(found[0].fatal);
  CHECK(found[0].text == files.at("etc/nccl.conf:2") +
                             ": NCCL_COMM_BLOCKING=1 is set: it makes calls of NCCL wait for "
                             "peers, and no deadline of dt holds; remove that line");
  CHECK_FALSE(found[1].fatal);
  const auto without = conf_obstacles(settings_with(), {{"NCCL_COMM_BLOCKING", "0"}}, files.read());
  for (const auto& each : without) CHECK_FALSE(each.fatal);
}

TEST_CASE("each job has a port of its own for RAS, or no RAS, unless the user has decided") {
  Files files;
  CHECK(text_of(ras_variables(settings_with(), {}, {}, 4711)) == "NCCL_RAS_ADDR=127.0.0.1:4711 ");
  CHECK(text_of(ras_variables(settings_with(), {}, {}, 0)) == "NCCL_RAS_ENABLE=0 ");
  CHECK(ras_variables(settings_with(), {{"NCCL_RAS_ADDR", "localhost:1"}}, {}, 4711).empty());
  CHECK(ras_variables(settings_with(), {{"NCCL_RAS_ENABLE", "0"}}, {}, 4711).empty());
  CHECK(ras_variables(settings_with({{"nccl.ras_addr", "a:1"}}), {}, {}, 4711).empty());
  CHECK(ras_variables(settings_with({{"nccl.ras_enable", "true"}}), {}, {}, 0).empty());
  files.tree.write("home/.nccl.conf", "NCCL_RAS_ADDR=localhost:28029\n");
  CHECK(ras_variables(settings_with(), {}, files.read(), 4711).empty());
}
