// SPDX-License-Identifier: Apache-2.0
#pragma once

// What join_load and store_load share: a server that is a process of its own.
#include <netinet/in.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dt::load {

/// Says why and ends the program, and the server that runs.
[[noreturn]] void fail(const std::string& message);
/// Fails with errno.
void require(bool holds, const char* what);

sockaddr_in loopback(uint16_t port);
/// One that was free a moment ago, for a server that does not tell what the kernel chose.
uint16_t free_port();

/// One at a time.
class ServerProcess {
 public:
  /// Runs `command`. With port 0 its first line of output ends in the address and port where it
  /// listens.
  ServerProcess(const std::vector<std::string>& command, uint16_t port);
  ~ServerProcess() { end(); }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  /// Kills it. What it would do about the end of all its clients takes longer than a round.
  void end();

  const sockaddr_in& address() const { return address_; }
  int64_t resident_bytes() const;
  /// Of all of its threads so far, in steps of 1/100 s at best.
  double cpu_s() const;

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;  // open until its end: it may write more
  sockaddr_in address_{};
};

/// Of this process.
double own_cpu_s();

double median(std::vector<double> values);

/// Sets the numbers that `argv` names from `first` on ("--ranks 8").
struct Number {
  const char* name;
  int* value;
};
void parse_numbers(int argc, char** argv, int first, const std::vector<Number>& numbers);

}  // namespace dt::load
