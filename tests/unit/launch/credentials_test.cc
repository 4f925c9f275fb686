// SPDX-License-Identifier: Apache-2.0
// Where a job's token comes from, and which files are trusted with it.
#include "launch/credentials.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "../as_other_user.h"

using namespace dt;
using launch::Credentials;

namespace {

const std::string kA(64, 'a');
const std::string kB(64, 'b');
const std::string kC(64, 'c');

/// A folder of its own, gone at the end.
struct Folder {
  Folder() {
    char name[] = "/tmp/dt-token-XXXXXX";
    path = mkdtemp(name);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string put(const std::string& name, const std::string& text, mode_t mode) const {
    const std::string file = path + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(file).parent_path());
    const int fd = open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    CHECK(write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()));
    close(fd);
    CHECK(chmod(file.c_str(), mode) == 0);
    return file;
  }
  std::string path;
};

Result<Credentials> find(const Environment& environment, bool may_come = false) {
  Config::LoadOptions options;
  options.system_directory = "";
  options.cwd = "/nonexistent";
  const auto config = Config::load(environment, options);
  if (!config.ok()) return config.status();
  return launch::find_credentials(config.value(), environment, may_come);
}

}  // namespace

TEST_CASE("credentials: the file that is named, then the variable, then the user's own file") {
  const Folder folder;
  const std::string named = folder.put("named", kA + "\n", 0600);
  const std::string own = folder.put(".config/dt/token", kC + "\n", 0400);
  Environment environment{{"HOME", folder.path}};
  auto found = find(environment);
  REQUIRE(found.ok());
  CHECK(found.value().security.token->text() == kC);
  CHECK(found.value().source == "the file " + own);
  CHECK(found.value().security.mode == net::SecurityMode::kAuth);
  CHECK(found.value().takes_token());  // what is made for this job goes before it
  environment["DT_TOKEN"] = kB;
  found = find(environment);
  CHECK(found.value().security.token->text() == kB);
  CHECK(found.value().source == "environment DT_TOKEN");
  CHECK_FALSE(found.value().takes_token());
  environment["DT_TOKEN_FILE"] = named;
  found = find(environment);
  CHECK(found.value().security.token->text() == kA);
  CHECK(found.value().source == "the file " + named);
  environment["DT_SECURITY_MODE"] = "encrypt";
  CHECK(find(environment).value().security.mode == net::SecurityMode::kEncrypt);
  environment["DT_SECURITY_MODE"] = "none";
  found = find(environment);
  CHECK_FALSE(found.value().has_token());
  CHECK(found.value().security.open_to_all);
  CHECK_FALSE(found.value().takes_token());
}

TEST_CASE("credentials: without a token nothing is guarded, and a mode that needs one says so") {
  const auto none = find({});
  REQUIRE(none.ok());
  CHECK(none.value().security.mode == net::SecurityMode::kNone);
  CHECK_FALSE(none.value().security.open_to_all);
  CHECK(find({{"DT_SECURITY_MODE", "auth"}}, true).ok());
  CHECK(find({{"DT_SECURITY_MODE", "encrypt"}}).status().message() ==
        "security.mode is encrypt, but there is no token: give all processes of the job one, in a "
        "file that DT_TOKEN_FILE (or security.token_file) names, or in ~/.config/dt/token on every "
        "host, which dt token makes");
}

TEST_CASE("credentials: a file that others can use is refused, and what is in it stays in it") {
  const Folder folder;
  const std::string open_file = folder.put("open", kA, 0644);
  const auto message = [](const std::string& file) {
    const Status status = find({{"DT_TOKEN_FILE", file}}).status();
    CHECK(status.code() == Code::kConfig);
    CHECK(status.message().find("aaaa") == std::string::npos);
    return status.message();
  };
  CHECK(message(open_file) ==
        "the token file " + open_file +
            " can be used by others (mode 0644): they could join and read the "
            "job; run: chmod 600 " +
            open_file);
  const std::string group = folder.put("group", kA, 0640);
  CHECK(message(group).find("(mode 0640)") != std::string::npos);
  const std::string absent = folder.path + "/absent";
  CHECK(message(absent) ==
        "the token file " + absent +
            " does not exist (environment DT_TOKEN_FILE names it); make one with "
            "dt token --file, and copy it to every host");
  const std::string little = folder.put("little", "aaaaaaaa", 0600);
  CHECK(message(little) ==
        little +
            ": the token has 8 digits, too few to keep anybody out: a token is 64 "
            "hexadecimal digits (256 bits); make one with dt token");
  CHECK(message(folder.path).find("is no regular file") != std::string::npos);
  if (geteuid() == 0) {
    const std::string foreign = folder.put("foreign", kA, 0600);
    REQUIRE(chown(foreign.c_str(), 12345, 12345) == 0);
    CHECK(message(foreign).find("belongs to user 12345, not to you") != std::string::npos);
  }
  CHECK(find({{"DT_TOKEN", "abc"}}).status().message() ==
        "DT_TOKEN: the token has 3 digits, too few to keep anybody out: a token is 64 hexadecimal "
        "digits (256 bits); make one with dt token");
}

TEST_CASE("credentials: no token is looked for in a folder that this user may not search") {
  const Folder folder;
  folder.put(".config/dt/token", kA, 0600);
  REQUIRE(chmod(folder.path.c_str(), 0700) == 0);
  const bool tried = test::as_other_user([&] {
    const auto found = find({{"HOME", folder.path}});
    REQUIRE_MESSAGE(found.ok(), found.status().message());
    CHECK_FALSE(found.value().has_token());
  });
  if (!tried) MESSAGE("not root: another user is not tested");
}

TEST_CASE("credentials: ./dt.toml cannot say how connections are guarded") {
  const Folder folder;
  folder.put("dt.toml", "[security]\nmode = \"none\"\n", 0600);
  Config::LoadOptions options;
  options.system_directory = "";
  options.cwd = folder.path;
  const Status status = Config::load({}, options).status();
  CHECK(status.code() == Code::kConfig);
  CHECK(status.message().find("security.mode") != std::string::npos);
}

TEST_CASE("credentials: a token is written whole, privately, and over none that is there") {
  const Folder folder;
  const std::string path = folder.path + "/a/b/token";
  const net::Token first = net::Token::random().value();
  const net::Token second = net::Token::random().value();
  REQUIRE(launch::write_token_file(path, first, false).ok());
  struct stat facts {};
  REQUIRE(stat(path.c_str(), &facts) == 0);
  CHECK((facts.st_mode & 07777) == 0600);
  CHECK(launch::read_token_file(path).value().value() == first);
  const Status refused = launch::write_token_file(path, second, false);
  CHECK(refused.code() == Code::kConfig);
  CHECK(refused.message() ==
        "the token file " + path +
            " exists: jobs that use it would not find each other with another; to replace it, say "
            "--force");
  CHECK(launch::read_token_file(path).value().value() == first);
  REQUIRE(launch::write_token_file(path, second, true).ok());
  CHECK(launch::read_token_file(path).value().value() == second);
  // Nothing is left beside it.
  size_t files = 0;
  for ([[maybe_unused]] const auto& each :
       std::filesystem::directory_iterator(folder.path + "/a/b")) {
    ++files;
  }
  CHECK(files == 1);
  CHECK_FALSE(launch::write_token_file("/proc/nowhere/token", first, false).ok());
  // root may replace a device, too, and everybody would miss it.
  const std::string pipe = folder.path + "/pipe";
  for (const std::string& other : {folder.path, pipe}) {
    if (other == pipe) REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
    CHECK(launch::write_token_file(other, first, true).message() ==
          "the token file " + other + " is no regular file, and is not replaced; name another one");
  }
  CHECK((stat(pipe.c_str(), &facts) == 0 && S_ISFIFO(facts.st_mode)));
}
