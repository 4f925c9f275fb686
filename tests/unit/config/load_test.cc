// SPDX-License-Identifier: Apache-2.0
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "../as_other_user.h"
#include "../contains.h"
#include "temp_tree.h"

using dt::Config;
using dt::SourceKind;
using dt::test::as_other_user;
using dt::test::contains;

namespace {

constexpr const char* kCap = "reducer.bucket_cap_bytes";

}  // namespace

TEST_CASE("Config: without files and variables every key has its default") {
  const TempTree tree;
  const auto config = tree.load();
  REQUIRE(config.ok());
  CHECK(config.value().integer(kCap) == 26214400);
  CHECK(config.value().integer("job.rank") == -1);
  CHECK(config.value().boolean("reducer.rebuild"));
  CHECK(config.value().text("log.level") == "warning");
  CHECK(config.value().text("job.id").empty());
  CHECK(config.value().source_of(kCap).where == "default");
  CHECK_FALSE(config.value().given(kCap));
  CHECK(config.value().warnings().empty());
}

TEST_CASE("Config: each source wins over the weaker ones and is remembered") {
  const TempTree tree;
  const auto cap = [&](const dt::Environment& environment) {
    auto config = tree.load(environment);
    REQUIRE(config.ok());
    const Config& value = config.value();
    return std::to_string(value.integer(kCap)) + " " + value.source_of(kCap).where;
  };
  tree.write("etc/dt.toml", "schema = 1\n[reducer]\nbucket_cap_bytes = 1\n");
  CHECK(cap({}) == "1 " + tree.path("etc/dt.toml") + ":3");
  tree.write("home/.config/dt/dt.toml", "reducer.bucket_cap_bytes = 2\n");
  CHECK(cap({}) == "2 " + tree.path("home/.config/dt/dt.toml") + ":1");
  tree.write("xdg/dt/dt.toml", "\n\nreducer = {bucket_cap_bytes = 3}\n");
  CHECK(cap({{"XDG_CONFIG_HOME", tree.path("xdg")}}) == "3 " + tree.path("xdg/dt/dt.toml") + ":3");
  CHECK(cap({{"XDG_CONFIG_HOME", "relative"}})[0] == '2');
  tree.write("cwd/dt.toml", "# mine\n[reducer]\nbucket_cap_bytes = 4\n");
  CHECK(cap({}) == "4 dt.toml:3");
  tree.write("cwd/other.toml", "[reducer]\nbucket_cap_bytes = 5\n");
  CHECK(cap({{"DT_CONFIG", "other.toml"}}) == "5 other.toml:2");
  CHECK(cap({{"DT_CONFIG", "/dev/null"}})[0] == '2');  // replaces ./dt.toml
  CHECK(cap({{"DT_REDUCER_BUCKET_CAP_BYTES", "6"}}) == "6 environment DT_REDUCER_BUCKET_CAP_BYTES");

  auto config = tree.load({{"DT_REDUCER_BUCKET_CAP_BYTES", "6"}});
  REQUIRE(config.ok());
  REQUIRE(config.value().set(kCap, "7").ok());
  CHECK(config.value().integer(kCap) == 7);
  CHECK(config.value().source_of(kCap).kind == SourceKind::kCall);
}

TEST_CASE("Config: discovered values fill only what nobody gave") {
  const TempTree tree;
  auto loaded = tree.load({{"DT_RANK", "3"}});
  REQUIRE(loaded.ok());
  Config config = loaded.value();
  REQUIRE(config.set_discovered("job.rank", "1", "torchrun: RANK").ok());
  REQUIRE(config.set_discovered("job.world_size", "8", "torchrun: WORLD_SIZE").ok());
  CHECK(config.integer("job.rank") == 3);
  CHECK(config.integer("job.world_size") == 8);
  CHECK(config.source_of("job.world_size").where == "torchrun: WORLD_SIZE");
  CHECK(config.set_discovered("job.local_rank", "x", "torchrun: LOCAL_RANK").message() ==
        "torchrun: LOCAL_RANK: job.local_rank is \"x\"; expected an integer from -1 to 2147483646");
  CHECK(loaded.value().integer("job.world_size") == -1);  // a copy shares nothing
}

TEST_CASE("Config: a time-out of heartbeats is at least twice their interval") {
  TempTree tree;
  tree.write("cwd/dt.toml", "\nheartbeat.timeout_ms = 1999\n");
  const auto both = tree.load({});
  REQUIRE(both.ok());
  CHECK(both.value().check_together().message() ==
        "heartbeat.timeout_ms is 1999 (dt.toml:2) and heartbeat.interval_ms is 1000 (default): "
        "ranks that live would count as lost between two signs of life; give a time-out of at "
        "least twice the interval");
  for (const char* interval : {"999", "0"}) {
    const auto config = tree.load({{"DT_HEARTBEAT_INTERVAL_MS", interval}});
    REQUIRE(config.ok());
    CHECK(config.value().check_together().ok());
  }
  CHECK(Config().check_together().ok());
}

TEST_CASE("Config: the file that the call names wins over DT_CONFIG") {
  TempTree tree;
  tree.write("cwd/a.toml", "run.show_lines = 1\n");
  tree.write("cwd/b.toml", "run.show_lines = 2\n");
  tree.options.file = "a.toml";
  const auto config = tree.load({{"DT_CONFIG", "b.toml"}});
  REQUIRE(config.ok());
  CHECK(config.value().integer("run.show_lines") == 1);
}

TEST_CASE("Config: faults in a file are told with line, column and what was expected") {
  const TempTree tree;
  CHECK(tree.error_of("[reducer]\nbucket_cap = 3\n") ==
        "dt.toml:2:1: unknown key \"reducer.bucket_cap\"; the nearest known key is "
        "reducer.bucket_cap_bytes");
  CHECK(tree.error_of("[reducr]\nrebuild = true\n") ==
        "dt.toml:1:2: unknown section \"reducr\"; the nearest known section is reducer");
  CHECK(tree.error_of("[weather]\n") ==
        "dt.toml:1:2: unknown section \"weather\"; dt config lists all keys");
  CHECK(tree.error_of("\"reducer.rebuild\" = true\n") ==
        "dt.toml:1:1: unknown key \"reducer.rebuild\"; write the name without quotes");
  CHECK(tree.error_of("reducer.bucket_cap_bytes = \"25MB\"\n") ==
        "dt.toml:1:28: reducer.bucket_cap_bytes is \"25MB\"; expected an integer in bytes from 1 "
        "to 1099511627776");
  CHECK(tree.error_of("[host]\n\n  slot_bytes = 7 # small\n") ==
        "dt.toml:3:16: host.slot_bytes is 7; expected an integer in bytes from 4096 to 16777216");
  CHECK(tree.error_of("log.level = 'loud'\n") ==
        "dt.toml:1:13: log.level is \"loud\"; expected one of error, warning, info, debug");
  CHECK(tree.error_of("reducer.rebuild = 1\n") ==
        "dt.toml:1:19: reducer.rebuild is 1; expected true or false");
  CHECK(tree.error_of("run.grace_ms = 1.5\n") ==
        "dt.toml:1:16: run.grace_ms is 1.5; expected an integer in ms from 0 to 31536000000");
  CHECK(contains(tree.error_of("job.id = [1]\n"), "dt.toml:1:10: job.id is an array; expected a "));
  CHECK(tree.error_of("reducer = 3\n") ==
        "dt.toml:1:11: reducer is 3; expected a section: [reducer]");
  CHECK(tree.error_of("schema = 'one'\n") ==
        "dt.toml:1:10: schema is \"one\"; expected an integer of at least 1 (this release writes "
        "1)");
  CHECK(tree.error_of("schema = 0\n").substr(0, 24) == "dt.toml:1:10: schema is ");
}

TEST_CASE("Config: of several faults the first in the file is told") {
  const TempTree tree;
  CHECK(tree.error_of("[store]\nbnd = ''\n[backend]\nname = 1\n[host]\nspinn = 1\n") ==
        "dt.toml:2:1: unknown key \"store.bnd\"; the nearest known key is store.bind (and 2 more "
        "in this file)");
}

TEST_CASE("Config: malformed files") {
  const TempTree tree;
  CHECK(contains(tree.error_of("[reducer\n"), "dt.toml:1:9: not valid TOML: "));
  const std::string twice = tree.error_of("[run]\ngrace_ms = 1\ngrace_ms = 2\n");
  CHECK(contains(twice, "dt.toml:3:"));
  CHECK(contains(twice, "grace_ms"));
  CHECK(tree.error_of("# \xe4\n") == "dt.toml:1:3: not UTF-8; save the file as UTF-8 text");
  CHECK(contains(tree.error_of(std::string("a = 1\0", 6)), "dt.toml:1:"));
  CHECK(tree.error_of(std::string((1 << 20) + 1, '#')) ==
        "dt.toml: is larger than 1048576 bytes; this is no dt.toml");
  // toml++ 3.3 has undefined behaviour for these.
  for (const char* text : {"\xc3\xa4 = 1", "a\xc3\xa4 = 1", "a = '' \xc3\xa4",
                           "# \xc3\xa4\n[run]\xe2\x80\x83", "a = \"\"\"x\\\n \xc3\xa4\"\"\""}) {
    CHECK(contains(tree.error_of(text), "not valid TOML: a character that is not ASCII may only"));
  }
  CHECK(tree.error_of("# \xc3\xa4\n- \xc3\xa4 = 1\n").substr(0, 14) == "dt.toml:2:3: n");
  for (const char* text :
       {"job.id = '\xc3\xa4'", "job.id = \"\\\"\xc3\xa4\"", "\xef\xbb\xbf# \xc3\xa4",
        "job.id = \"\"\"x\xc3\xa4\\\n y\"\"\"\"\"", "job.id = '''\n\\\xc3\xa4'''"}) {
    CAPTURE(std::string(text));
    tree.write("cwd/dt.toml", text);
    const auto config = tree.load();
    INFO(config.status().message());
    CHECK(config.ok());
  }
  // An assertion of toml++ 3.3 ended the process here.
  CHECK(contains(tree.error_of("a = 1979-05-27T[07:32:00Z\n"), "dt.toml:1:16: not valid TOML: "));
}

TEST_CASE("Config: what is nested too deeply is refused before it is parsed") {
  const TempTree tree;
  const auto many = [](const std::string& text, int times) {
    std::string all;
    for (int i = 0; i < times; ++i) all += text;
    return all;
  };
  constexpr int kMany =
      200'000;  // toml++ 3.3 overflows the stack for dotted names of so many parts
  const std::string deep = "nested more than 32 levels deep; no key of dt has more than 3 levels";
  CHECK(tree.error_of("a" + many(".a", kMany) + " = 1\n") == "dt.toml:1:66: " + deep);
  CHECK(tree.error_of("[run]\n['a'" + many(" .\"a\"", kMany) + "]\n") == "dt.toml:2:161: " + deep);
  CHECK(tree.error_of("[[a" + many(".a", kMany) + "]]\n") == "dt.toml:1:64: " + deep);
  CHECK(tree.error_of("a = " + many("[", kMany)) == "dt.toml:1:37: " + deep);
  CHECK(tree.error_of("a = " + many("{a=", kMany)) == "dt.toml:1:101: " + deep);
  // toml++ counts no parts of names inside of tables.
  CHECK(tree.error_of("a = " + many("{a.a.a.a.a.a.a.a=", 250)) == "dt.toml:1:73: " + deep);
  CHECK(tree.error_of("a = [" + many("\n[# ]", 40)) == "dt.toml:33:1: " + deep);
  CHECK(
      contains(tree.error_of("a = [" + many("]", kMany) + " " + many(".", 32)), "not valid TOML"));
  // Width is not depth, and dots in strings and comments are no levels.
  const std::string wide = "schema = 2\na = [" + many("1.5, [{b.c = 2.5}],\n", 100) + "]\n" +
                           many("# .....\n", 20) + "'" + many(".", 100) + "' = \"[[[[[\"\n" +
                           many("[x.y]\n", 1) + "a" + many(".a", 31) + " = 1\n";
  tree.write("cwd/dt.toml", wide);
  const auto config = tree.load();
  INFO(config.status().message());
  CHECK(config.ok());
}

TEST_CASE("Config: files that cannot be read") {
  const TempTree tree;
  CHECK(tree.error({{"DT_CONFIG", "gone.toml"}}) ==
        "DT_CONFIG: gone.toml: cannot be read: No such file or directory");
  CHECK(tree.error({{"DT_CONFIG", tree.path("etc")}}) ==
        "DT_CONFIG: " + tree.path("etc") + ": is a directory; expected a file");
  const std::string fifo = tree.path("fifo");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(tree.error({{"DT_CONFIG", fifo}}) ==
        "DT_CONFIG: " + fifo + ": is neither a regular file nor /dev/null");
  std::filesystem::create_symlink(tree.path("gone.toml"), tree.path("cwd/dt.toml"));
  CHECK(tree.error() ==
        "dt.toml: is a symbolic link to a file that does not exist; mend or remove it");
  std::filesystem::remove(tree.path("cwd/dt.toml"));
  std::filesystem::create_directory(tree.path("cwd/dt.toml"));
  CHECK(tree.error() == "dt.toml: is a directory; expected a file");
}

TEST_CASE("Config: folders that this user may not search are passed over with a warning") {
  const TempTree tree;
  tree.write("home/.config/dt/dt.toml", "run.show_lines = 1\n");
  tree.write("cwd/dt.toml", "run.show_lines = 2\n");
  tree.write("etc/dt.toml", "run.show_lines = 3\n");
  const auto allow = [&](const char* name, mode_t mode) {
    REQUIRE(chmod(tree.path(name).c_str(), mode) == 0);
  };
  const std::string user = tree.path("home/.config/dt/dt.toml");
  const std::string named = tree.path("cwd/dt.toml");
  const std::string system = tree.path("etc/dt.toml");
  allow("", 0755);
  allow("home/.config/dt", 0700);
  allow("cwd", 0700);
  const bool tried = as_other_user([&] {
    const auto config = tree.load();
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    CHECK(config.value().integer("run.show_lines") == 3);
    CHECK(
        config.value().warnings() ==
        std::vector<std::string>{
            user + ", and a token next to it, are not looked for: this user may not search "
                   "their folder; set HOME or XDG_CONFIG_HOME to one of its own",
            "dt.toml is not looked for in the working directory, which this user may not search"});
    CHECK(tree.error({{"DT_CONFIG", named}}) ==
          "DT_CONFIG: " + named + ": cannot be read: Permission denied");
  });
  if (!tried) {
    MESSAGE("not root: another user is not tested");
    return;
  }
  // What is there and cannot be read may hold what matters, and so may the administrator's file.
  allow("home/.config/dt", 0755);
  allow("home/.config/dt/dt.toml", 0600);
  as_other_user([&] { CHECK(tree.error() == user + ": cannot be read: Permission denied"); });
  allow("etc", 0700);
  as_other_user([&] { CHECK(tree.error() == system + ": cannot be read: Permission denied"); });
}

TEST_CASE("Config: ./dt.toml must be ours") {
  const TempTree tree;
  tree.write("cwd/dt.toml", "run.show_lines = 1\n");
  REQUIRE(chmod(tree.path("cwd/dt.toml").c_str(), 0646) == 0);
  CHECK(tree.error() == "dt.toml: can be written by everybody; run: chmod o-w dt.toml");
  CHECK(tree.load({{"DT_CONFIG", "dt.toml"}}).ok());  // named on purpose
}

TEST_CASE("Config: another user's ./dt.toml is not read, and stops nobody") {
  const TempTree tree;
  const std::string path = tree.path("cwd/dt.toml");
  tree.write("cwd/dt.toml", "run.show_lines = 7\n");
  const auto give_away = [&] { return lchown(path.c_str(), 4242, static_cast<gid_t>(-1)) == 0; };
  if (!give_away()) {
    MESSAGE("not root: the owner is not tested");
    return;
  }
  const auto is_passed_over = [&] {
    const auto config = tree.load();
    REQUIRE_MESSAGE(config.ok(), config.status().message());
    CHECK(config.value().integer("run.show_lines") == 30);
    CHECK(config.value().warnings() ==
          std::vector<std::string>{
              "dt.toml in the working directory is not read: it belongs to user 4242, and must "
              "belong to this user (0) or to root; if you trust it, set DT_CONFIG=./dt.toml, "
              "otherwise start in another directory or remove it"});
  };
  is_passed_over();
  REQUIRE(chmod(path.c_str(), 0666) == 0);
  is_passed_over();
  CHECK(tree.load({{"DT_CONFIG", "dt.toml"}}).value().integer("run.show_lines") == 7);
  // A link of the user's own that leads to it.
  REQUIRE(rename(path.c_str(), (path + ".other").c_str()) == 0);
  REQUIRE(symlink("dt.toml.other", path.c_str()) == 0);
  is_passed_over();
  // Things that would be errors, were they the user's own.
  REQUIRE(unlink(path.c_str()) == 0);
  REQUIRE(symlink("nowhere", path.c_str()) == 0);
  REQUIRE(give_away());
  is_passed_over();
  REQUIRE(unlink(path.c_str()) == 0);
  tree.write("cwd/own.toml", "run.show_lines = 8\n");
  REQUIRE(symlink("own.toml", path.c_str()) == 0);  // a stranger does not choose what is read
  REQUIRE(give_away());
  is_passed_over();
  REQUIRE(unlink(path.c_str()) == 0);
  REQUIRE(mkfifo(path.c_str(), 0666) == 0);
  REQUIRE(give_away());
  is_passed_over();
  REQUIRE(unlink(path.c_str()) == 0);
  REQUIRE(mkdir(path.c_str(), 0777) == 0);
  REQUIRE(give_away());
  is_passed_over();
  REQUIRE(rmdir(path.c_str()) == 0);
}

TEST_CASE("Config: ./dt.toml cannot set guarded keys, other files can") {
  using dt::config::Agreement;
  using dt::config::Type;
  static constexpr dt::config::Key kTable[] = {
      {"nccl.library", "DT_NCCL_LIBRARY", Type::kString, "", 0, 100, "", "", Agreement::kMayDiffer,
       true, "A path."},
      {"nccl.share", "DT_NCCL_SHARE", Type::kInteger, "", 0, 9, "5", "", Agreement::kEqual, false,
       "A share."},
  };
  TempTree tree;
  tree.options.keys = kTable;
  CHECK(tree.error_of("[nccl]\nshare = 2\nlibrary = '/tmp/evil.so'\n") ==
        "dt.toml:3:1: nccl.library cannot be set in this file, which may come with a download; "
        "set it in ~/.config/dt/dt.toml, in /etc/dt/dt.toml or as DT_NCCL_LIBRARY");
  CHECK(tree.load({{"DT_CONFIG", "dt.toml"}}).ok());
  tree.write("cwd/dt.toml", "nccl.share = 1\n");
  tree.write("home/.config/dt/dt.toml", "nccl.library = 'libnccl.so.2'\n");
  const auto config = tree.load();
  REQUIRE(config.ok());
  CHECK(config.value().text("nccl.library") == "libnccl.so.2");
  CHECK(config.value().integer("nccl.share") == 1);
  CHECK(config.value().equal_keys() ==
        std::vector<std::pair<std::string, std::string>>{{"nccl.share", "1"}});
  CHECK(contains(tree.error_of("nccl.share = nan\n"), "expected an integer from 0 to 9"));
}

TEST_CASE("Config: a locked key keeps the value of /etc and warns once per other value") {
  const TempTree tree;
  tree.write("etc/dt.toml", "lock = ['reducer.bucket_cap_bytes']\nreducer.bucket_cap_bytes = 9\n");
  tree.write("cwd/dt.toml", "reducer.bucket_cap_bytes = 8\n");
  auto loaded = tree.load({{"DT_REDUCER_BUCKET_CAP_BYTES", "9"}});  // equal: nothing to say
  REQUIRE(loaded.ok());
  Config& config = loaded.value();
  CHECK(config.integer(kCap) == 9);
  CHECK(config.source_of(kCap).kind == SourceKind::kSystemFile);
  const std::string lock = tree.path("etc/dt.toml") + ":1";
  CHECK(config.warnings() ==
        std::vector<std::string>{"reducer.bucket_cap_bytes stays \"9\": " + lock +
                                 " locks it, so \"8\" from dt.toml:1 is ignored"});
  CHECK(config.set(kCap, "7").ok());
  CHECK(config.set(kCap, "7").ok());
  CHECK(config.integer(kCap) == 9);
  CHECK(config.warnings().size() == 2);
  CHECK_FALSE(config.set(kCap, "x").ok());
}

TEST_CASE("Config: faults in a lock") {
  const TempTree tree;
  CHECK(tree.error_of("lock = []\n") ==
        "dt.toml:1:8: only /etc/dt/dt.toml may lock keys; remove this line");
  tree.write("cwd/dt.toml", "");
  const auto error = [&](const std::string& text) {
    tree.write("etc/dt.toml", text);
    return tree.error().substr(tree.path("etc/dt.toml").size());
  };
  CHECK(error("lock = ['run.prefx']\n") ==
        ":1:9: lock holds the unknown key \"run.prefx\"; the nearest known key is run.prefix");
  CHECK(error("lock = ['run.prefix']\n") ==
        ":1:9: run.prefix is locked, but this file does not set it; set it here too");
  CHECK(error("lock = 'run.prefix'\n") ==
        ":1:8: lock is \"run.prefix\"; expected an array of names of keys");
  CHECK(error("lock = [1]\n") == ":1:9: lock holds 1; expected names of keys");
}

TEST_CASE("Config: unknown keys of a newer schema are warnings, bad values stay errors") {
  const TempTree tree;
  tree.write("cwd/dt.toml", "schema = 2\n[future]\nx = 1\n[run]\nprefx = 1\nshow_lines = 4\n");
  const auto config = tree.load();
  REQUIRE(config.ok());
  CHECK(config.value().integer("run.show_lines") == 4);
  REQUIRE(config.value().warnings().size() == 2);
  CHECK(contains(config.value().warnings()[1],
                 "dt.toml:5:1: unknown key \"run.prefx\"; the nearest known key is run.prefix; "
                 "ignored, as the file's schema is newer than this release"));
  CHECK(contains(tree.error_of("schema = 2\nrun.show_lines = -1\n"), "dt.toml:2:18: run.show_l"));
}

TEST_CASE("Config: variables") {
  const TempTree tree;
  CHECK(tree.load({{"DT_SOMETHING_ELSE", "1"}}).ok());  // other software's
  CHECK(tree.error({{"DT_RUN_SHOW_LINES", "30 "}}) ==
        "DT_RUN_SHOW_LINES (run.show_lines) is \"30 \"; expected an integer from 0 to 100000");
  CHECK(tree.error({{"DT_MASTER_PORT", "70000"}}) ==
        "DT_MASTER_PORT (job.master_port) is \"70000\"; expected an integer from 0 to 65535");
  CHECK(contains(tree.error({{"DT_JOB_ID", std::string(257, 'x')}}),
                 "...\"; expected a string of at most 256 bytes"));
  CHECK(contains(tree.error({{"DT_LOG_LEVEL", "a\nb\x7f"}}), "is \"a?b?\"; expected one of"));
  const auto config = tree.load({{"DT_RUN_PREFIX", ""}, {"DT_STORE_SERVED", "1"}});
  REQUIRE(config.ok());
  CHECK(config.value().boolean("run.prefix"));
  CHECK(config.value().boolean("job.store_served"));
  CHECK(config.value().warnings() ==
        std::vector<std::string>{
            "empty_variable: DT_RUN_PREFIX is set but empty and counts as not set"});
}

TEST_CASE("Config: set refuses what it does not know and then changes nothing") {
  Config config;
  CHECK(config.set("reducer.bucket_cap_mb", "25").message() ==
        "unknown key \"reducer.bucket_cap_mb\"; the nearest known is reducer.bucket_cap_bytes");
  CHECK(config.set(kCap, "25MB").message() ==
        "reducer.bucket_cap_bytes is \"25MB\"; expected an integer in bytes from 1 to "
        "1099511627776");
  CHECK(config.integer(kCap) == 26214400);
  CHECK(config.value_text(kCap).value() == "26214400");
  CHECK_FALSE(config.value_text("x").ok());
}

TEST_CASE("Config: dumps") {
  const TempTree tree;
  tree.write("cwd/dt.toml", "[reducer]\nrebuild = false\n");
  auto config = tree.load({{"DT_JOB_ID", "caf\xc3\xa9 \"x\""}});
  REQUIRE(config.ok());
  const auto json = nlohmann::json::parse(config.value().dump_json());
  CHECK(json.size() == dt::config::keys().size());
  CHECK(json.at("reducer.rebuild") == nlohmann::json({{"value", false}, {"source", "dt.toml:2"}}));
  CHECK(json.at("job.id").at("value") == "caf\xc3\xa9 \"x\"");
  CHECK(json.at("job.id").at("source") == "environment DT_JOB_ID");
  CHECK(json.at(kCap) == nlohmann::json({{"value", 26214400}, {"source", "default"}}));

  const std::string text = config.value().dump_text();
  CHECK(text.substr(0, 4) == "key ");
  CHECK(contains(text, "\nreducer.rebuild"));
  CHECK(contains(text, "  dt.toml:2\n"));
  const size_t column = text.substr(0, text.find('\n')).find("source");
  CHECK(text.substr(text.find("\nhost.spin_us") + 1 + column, 8) == "default\n");
  CHECK(config.value().entries().size() == dt::config::keys().size());
}

TEST_CASE("Config: equal keys leave out what may differ and what the join itself refuses") {
  Config config;
  std::string names;
  for (const auto& [name, value] : config.equal_keys()) names += name + "=" + value + " ";
  CHECK(names ==
        "watchdog.check=lazy security.mode=auto network.algorithm=auto host.inline_bytes=8192 "
        "host.slot_bytes=65536 "
        "backend.name=auto "
        "backend.shared_gpu=refuse reducer.bucket_cap_bytes=26214400 "
        "reducer.first_bucket_bytes=1048576 "
        "reducer.rebuild=true reducer.check_steps=0 ");
  // Of keys whose default means that they are not set.
  const size_t before = config.equal_keys().size();
  REQUIRE(config.set("nccl.algo", "Ring").ok());
  REQUIRE(config.set("nccl.debug", "WARN").ok());
  CHECK(config.equal_keys().size() == before + 1);
}

TEST_CASE("process_environment: holds what getenv sees") {
  const dt::Environment environment = dt::process_environment();
  const char* path = std::getenv("PATH");
  REQUIRE(path != nullptr);
  CHECK(environment.at("PATH") == path);
}

TEST_CASE("Config: a table of variables comes from a file or as one text") {
  TempTree tree;
  tree.write("cwd/dt.toml",
             "[nccl]\nib_disable = true\n[nccl.env]\nNCCL_Y = 'a,b'\nNCCL_X = 3\n"
             "NCCL_Z = false\n");
  auto config = tree.load();
  REQUIRE(config.ok());
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  CHECK(config.value().variables("nccl.env") ==
        Pairs{{"NCCL_X", "3"}, {"NCCL_Y", "a,b"}, {"NCCL_Z", "0"}});
  CHECK(config.value().source_of("nccl.env").where == "dt.toml:3");
  CHECK(config.value().text("nccl.ib_disable") == "true");
  CHECK(contains(config.value().dump_json(), "\"NCCL_Y\": \"a,b\""));
  config = tree.load({{"DT_NCCL_ENV", "NCCL_X=4"}});
  REQUIRE(config.ok());
  CHECK(config.value().variables("nccl.env") == Pairs{{"NCCL_X", "4"}});
  const std::string expected =
      "expected names and values without blanks, as NAME=value, of at most 4096 bytes";
  CHECK(tree.error_of("[nccl.env]\nNCCL_X = 1.5\n") ==
        "dt.toml:1:1: nccl.env is a table; " + expected);
  CHECK(tree.error_of("nccl.env = 'NCCL_X'\n") ==
        "dt.toml:1:12: nccl.env is \"NCCL_X\"; " + expected);
  CHECK(tree.error_of("nccl.ib_disable = 1\n") ==
        "dt.toml:1:19: nccl.ib_disable is 1; expected one of auto, true, false");
}
