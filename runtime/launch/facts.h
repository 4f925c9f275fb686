// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "launch/discover.h"
#include "launch/variables.h"
#include "net/host_port.h"

namespace dt::launch {

enum class Field : size_t {
  kRank,
  kWorldSize,
  kLocalRank,
  kLocalSize,
  kNodeRank,
  kNodeCount,
  kMasterPort,
  kAttempt,
};
constexpr size_t kFieldCount = 8;

/// A number and who says it; messages show it as "RANK=3".
struct NumberFact {
  int32_t value = 0;
  std::string variable;

  std::string text() const { return variable + "=" + std::to_string(value); }
};

struct TextFact {
  std::string value;
  std::string variable;
};

/// What one family of variables says. Families are read apart and never mixed field by field: a
/// blank is filled from another family only when rank and size are equal in both.
struct Facts {
  std::array<std::optional<NumberFact>, kFieldCount> numbers;
  std::optional<TextFact> master_addr;
  std::optional<TextFact> job_id;
  bool port_taken = false;
  bool store_served = false;
  std::string launcher;
  /// Why this is a launch although it names neither rank nor size; empty: it is none.
  std::string intention;
  Exchange exchange = Exchange::kNone;
  bool exchange_reachable = false;  ///< its descriptor or server is named by the variables
  Exchange token_exchange = Exchange::kNone;  ///< check_rendezvous() leaves it where none is needed
  /// Address and port follow from names and numbers of the job: an exchange is better.
  bool by_convention = false;
  bool address_by_convention = false;  ///< the address alone, whoever says the port
  /// A launcher that cannot have been set up by hand: whatever is around it has started it.
  bool nested = false;
  /// Ranks are known only when all processes have met. On node 1 and later nodes Field::kRank is
  /// -1.
  bool settles_ranks = false;
  /// It knows rank and size only: an equal family that knows more names the launcher.
  bool bare = false;
  /// Why no address follows from these variables, with its kind in front; empty: for no reason.
  std::string no_address;
  std::vector<std::string> warnings;  ///< told when this family is chosen

  std::optional<NumberFact>& at(Field field) { return numbers[static_cast<size_t>(field)]; }
  const std::optional<NumberFact>& at(Field field) const {
    return numbers[static_cast<size_t>(field)];
  }
  int32_t value(Field field, int32_t otherwise) const {
    return at(field) ? at(field)->value : otherwise;
  }
  bool complete() const { return at(Field::kRank) && at(Field::kWorldSize); }
  bool partial() const {
    return !complete() && (at(Field::kRank) || at(Field::kWorldSize) || !intention.empty());
  }
  /// Both complete, with the same rank and size.
  bool same_launch(const Facts& other) const;
  /// Takes from `other` what is not known here.
  void fill_blanks(const Facts& other);
  /// The part of fill_blanks() that says where the store is.
  void fill_rendezvous(const Facts& other);
};

/// One variable that holds a number. Where several rows name one field, the first that is set wins.
struct NumberRow {
  Field field;
  const char* variable;
  int64_t minimum;
  int64_t maximum;
  int64_t unset;  ///< this value counts as not set; below `minimum` or equal to it
};
constexpr int64_t kNoUnset = INT64_MIN;

/// Rows of a usual shape.
constexpr NumberRow rank_row(Field field, const char* variable) {
  return {field, variable, 0, INT32_MAX - 1, kNoUnset};
}
constexpr NumberRow size_row(Field field, const char* variable) {
  return {field, variable, 1, INT32_MAX, kNoUnset};
}

Status read_numbers(Variables& variables, std::span<const NumberRow> rows, Facts& facts);
/// A host name, an IPv4 or an IPv6 address (brackets are removed). Error: bad_address.
Status read_address(Variables& variables, const char* variable, Facts& facts);
/// The same check of a text that `shown` holds.
Result<std::string> parse_host(const std::string& shown, const std::string& given);
/// "host:port", "[::1]:port" or a host alone; port 0: none given. Errors: bad_address.
Result<net::HostPort> parse_host_port(const std::string& shown, const std::string& given);
/// MASTER_ADDR and MASTER_PORT, which go before what a platform says, and whether torchrun's agent
/// holds that port.
Status read_user_rendezvous(Variables& variables, Facts& facts);
/// One process per node: local rank 0 of 1, node rank and count as rank and size.
void set_one_per_node(Facts& facts);

/// Whether a job can have so many ranks. To be asked before anything is allocated per rank.
Status check_world_size(const NumberFact& size);
/// Local rank, node rank and rank in range of their sizes, and the size of the world in that of a
/// job. Error: out_of_range with the variables.
Status check_ranges(const Facts& facts);

/// Which families describe the same thing. A family of a later group may have started the process
/// of an earlier one, or may be it.
enum class Group {
  kOwn,
  kProcess,  ///< RANK, WORLD_SIZE and the like: the innermost
  kMpi,      ///< two that disagree cannot be told apart
  kStep,     ///< Slurm
  kNode,     ///< one process per node, as a cluster manager describes it
};

/// A family: how one kind of launcher describes a process. New ones get a file and a row in
/// discover.cc.
struct Family {
  const char* name;        ///< for DT_LAUNCHER
  const char* other_name;  ///< likewise, nullptr none
  Group group;
  const char* rank_variable;  ///< for messages
  const char* size_variable;  ///< likewise
  const char* how_to_launch;  ///< what to do when it is partial
  Result<Facts> (*read)(Variables& variables);
  /// Warns that its variables are there although it started no job; nullptr none.
  void (*warn_alone)(Variables& variables);
};

/// The families that describe a process, the own one first and then from the innermost outwards.
std::span<const Family> families();

/// What all variables say together: chosen, compared, with blanks filled and ranges checked. The
/// result has rank and world size, and, unless it is alone, an address and a port or an exchange.
Result<Facts> discover_facts(Variables& variables);
Place make_place(const Facts& facts, const Variables& variables);
/// The launches of MPI and Slurm that the variables describe: "slurm 812.0 0/2;openmpi 1/4", or
/// "none". `dt run` leaves its ranks what it saw, in the variable of this name: they inherit those
/// launches, and a launch that is not among them was started inside a rank. hydra, pals, jsrun and
/// mvapich2 name no job: a launch inside that has the numbers of the one around is not found. A
/// rank that sets such numbers by hand looks like a launch.
inline constexpr const char* kLaunchesAround = "DT_RUN_AROUND";
std::string launches_around(const Variables& variables);
/// Names the variables that `dt run` has set for a process, with blanks between them, itself
/// included. Not DT_TOKEN, which jobs that the process starts may share.
inline constexpr const char* kNamesSet = "DT_RUN_SET";
/// Error text if a launch of several processes started this process inside a rank, to which the
/// caller may add what else to do; empty otherwise.
std::string launch_inside_rank(Variables& variables);
/// Nobody says where rank 0 is; `address` when only the port is missing.
Status no_rendezvous(const std::string& launcher, const std::string& size,
                     const std::string& address);

Result<Facts> read_own(Variables& variables);
Result<Facts> read_torch(Variables& variables);
Result<Facts> read_horovod(Variables& variables);
Result<Facts> read_jsrun(Variables& variables);
Result<Facts> read_pals(Variables& variables);
Result<Facts> read_flux(Variables& variables);
Result<Facts> read_mvapich2(Variables& variables);
Result<Facts> read_openmpi(Variables& variables);
Result<Facts> read_hydra(Variables& variables);
Result<Facts> read_slurm(Variables& variables);
Result<Facts> read_lightning(Variables& variables);
Result<Facts> read_vertex(Variables& variables);
Result<Facts> read_tf_config(Variables& variables);
Result<Facts> read_sagemaker(Variables& variables);
Result<Facts> read_aws_batch(Variables& variables);
Result<Facts> read_k8s_indexed(Variables& variables);

void warn_openmpi_alone(Variables& variables);
void warn_slurm_alone(Variables& variables);
void warn_k8s_alone(Variables& variables);

}  // namespace dt::launch
