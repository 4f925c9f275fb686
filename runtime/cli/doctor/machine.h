// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/nccl/conf.h"
#include "base/status.h"
#include "base/wait.h"
#include "config/config.h"
#include "cuda/runtime.h"
#include "launch/credentials.h"
#include "launch/discover.h"
#include "net/address.h"

namespace dt::cli::doctor {

/// Where the kernel tells about itself; a test points them at a pretended tree.
struct Roots {
  std::string proc = "/proc";
  std::string sys = "/sys";
  std::string dev = "/dev";
};

/// One address of a network interface that is up.
struct InterfaceAddress {
  std::string interface;
  std::string address;  ///< numeric
  bool loopback = false;
  bool bridge = false;  ///< of containers or virtual machines: the same address on many hosts
};

/// Where the ranks find each other, when an address says so.
struct Meeting {
  std::string host;
  uint16_t port = 0;
  bool torch = false;  ///< a store of PyTorch is there, which tells where rank 0 serves dt's
};

/// What an attempt to reach the rendezvous showed; the better, the smaller the number.
struct Reach {
  enum Kind { kOpen, kRefused, kSilent, kUnresolved, kUnroutable } kind = kOpen;
  std::string detail;         ///< the reason in words, empty when open
  std::string local_address;  ///< this host's end of the route there; empty none
};

/// A library that is opened at run time.
struct Library {
  bool found = false;
  std::string path;
  int version = 0;                   ///< as the library says it
  std::string error;                 ///< why it cannot be used
  std::string origin;                ///< of NCCL: how it was found
  std::vector<std::string> missing;  ///< of NCCL: functions that dt can do without
};

/// All that the checks look at, so that they are pure.
struct Machine {
  Roots roots;
  std::string kernel;  ///< "Linux 6.1.0 x86_64"
  Environment environment;
  Config config;
  Status config_error;
  std::optional<launch::Place> place;
  Status place_error;
  launch::Credentials credentials;  ///< as far as they are known before the ranks meet
  Status credentials_error;
  std::vector<int> cpus;  ///< that this process may use
  rlimit open_files{};
  rlimit locked_memory{};
  rlimit processes{};
  std::vector<InterfaceAddress> interfaces;
  std::string chosen_address;       ///< by network.interface; empty: by the route
  Status network_error;             ///< of network.interface or network.port_range
  std::optional<Reach> rendezvous;  ///< absent where there is none, or the launcher carries it
  Status store_port;                ///< of a rank 0 that is to serve: whether it can listen
  bool serves_store = false;        ///< it is one
  Library cuda;                     ///< the driver's
  cuda::Answers cuda_answers;
  Library nccl;
  std::vector<nccl::ConfLine> nccl_conf;  ///< of the files that NCCL reads by itself
  bool ibverbs = false;                   ///< libibverbs.so.1 can be loaded
};

/// What the best of a host's addresses shows: a name may have some that do not lead there, as
/// localhost has ::1 on a machine without IPv6.
Reach reach_any(const std::vector<net::Address>& addresses, Deadline deadline);
/// Looks at this machine. Waits for the network until `deadline` at most.
Machine survey(Deadline deadline);

/// Of a job of several ranks without an exchange. CONFIG: store.torch_address is none.
Result<Meeting> meeting_of(const Machine& machine);
/// A file's content without the last line end; empty where there is none.
std::string read_text(const std::string& path);

}  // namespace dt::cli::doctor
