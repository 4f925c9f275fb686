// SPDX-License-Identifier: Apache-2.0
#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

namespace dt::load {
namespace {

pid_t serving = -1;  // no server is left behind by a failure

double in_seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

void fail(const std::string& message) {
  fprintf(stderr, "%s: %s\n", program_invocation_short_name, message.c_str());
  if (serving > 0) kill(serving, SIGKILL);
  exit(1);
}

void require(bool holds, const char* what) {
  if (!holds) fail(std::string(what) + ": " + strerror(errno));
}

sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = loopback(0);
  socklen_t length = sizeof address;
  auto* bare = reinterpret_cast<sockaddr*>(&address);
  require(fd >= 0 && bind(fd, bare, length) == 0 && getsockname(fd, bare, &length) == 0, "bind");
  close(fd);
  return ntohs(address.sin_port);
}

ServerProcess::ServerProcess(const std::vector<std::string>& command, uint16_t port)
    : address_(loopback(port)) {
  int out[2];
  int in[2];
  require(pipe2(out, O_CLOEXEC) == 0 && pipe2(in, O_CLOEXEC) == 0, "pipe");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  std::vector<char*> arguments;
  for (const std::string& each : command) arguments.push_back(const_cast<char*>(each.c_str()));
  arguments.push_back(nullptr);
  errno = posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  require(errno == 0, command[0].c_str());
  serving = pid_;
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(in[0]);
  input_ = in[1];
  output_ = out[0];
  if (port != 0) return;
  std::string line;
  for (char byte = 0; read(output_, &byte, 1) == 1 && byte != '\n';) line.push_back(byte);
  const size_t colon = line.rfind(':');
  if (colon == std::string::npos) fail(command[0] + " said no address");
  address_ = loopback(static_cast<uint16_t>(atoi(line.c_str() + colon + 1)));
}

void ServerProcess::end() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  serving = pid_ = -1;
  close(input_);
  close(output_);
}

int64_t ServerProcess::resident_bytes() const {
  std::ifstream status("/proc/" + std::to_string(pid_) + "/statm");
  int64_t total = 0;
  int64_t resident = 0;
  status >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

double ServerProcess::cpu_s() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  long user = 0;
  long kernel = 0;
  sscanf(text.c_str() + text.rfind(')') + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld",
         &user, &kernel);
  return static_cast<double>(user + kernel) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double own_cpu_s() {
  rusage usage{};
  require(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
  return in_seconds(usage.ru_utime) + in_seconds(usage.ru_stime);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void parse_numbers(int argc, char** argv, int first, const std::vector<Number>& numbers) {
  for (int i = first; i < argc; i += 2) {
    const auto found = std::find_if(numbers.begin(), numbers.end(), [&](const Number& each) {
      return strcmp(argv[i], each.name) == 0;
    });
    if (found == numbers.end() || i + 1 == argc) fail(std::string("what is ") + argv[i] + "?");
    *found->value = atoi(argv[i + 1]);
  }
}

}  // namespace dt::load
