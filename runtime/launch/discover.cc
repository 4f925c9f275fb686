// SPDX-License-Identifier: Apache-2.0
#include "launch/discover.h"

#include <optional>

#include "config/value.h"
#include "launch/facts.h"
#include "launch/mpi.h"

namespace dt::launch {
namespace {

constexpr Family kFamilies[] = {
    {"own", nullptr, Group::kOwn, "DT_RANK", "DT_WORLD_SIZE",
     "start the program with dt run, or set both on every rank", read_own, nullptr},
    {"torchrun", "env", Group::kProcess, "RANK", "WORLD_SIZE",
     "start the program with torchrun --no-python, srun, mpirun or dt run, or set both on every "
     "rank",
     read_torch, nullptr},
    {"horovod", nullptr, Group::kProcess, "HOROVOD_RANK", "HOROVOD_SIZE",
     "start the program with horovodrun", read_horovod, nullptr},
    {"jsrun", nullptr, Group::kMpi, "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE",
     "start the program with jsrun", read_jsrun, nullptr},
    {"pals", nullptr, Group::kMpi, "PALS_RANKID", "PALS_SIZE",
     "start the program with the mpiexec or aprun of PALS", read_pals, nullptr},
    {"flux", nullptr, Group::kMpi, "FLUX_TASK_RANK", "FLUX_JOB_SIZE",
     "start the program with flux run", read_flux, nullptr},
    {"mvapich2", nullptr, Group::kMpi, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE",
     "start the program with mpirun_rsh, mpiexec or srun", read_mvapich2, nullptr},
    {"openmpi", nullptr, Group::kMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "start the program with mpirun", read_openmpi, warn_openmpi_alone},
    {"hydra", "mpich", Group::kMpi, "PMI_RANK", "PMI_SIZE",
     "start the program with mpiexec (without -pmi-port) or srun --mpi=pmi2", read_hydra, nullptr},
    {"slurm", nullptr, Group::kStep, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS",
     "start the program with srun", read_slurm, warn_slurm_alone},
    {"lightning", nullptr, Group::kNode, "RANK", "WORLD_SIZE",
     "let Lightning's launcher or torchrun start the program, or set both on every rank",
     read_lightning, nullptr},
    {"vertex", nullptr, Group::kNode, "CLUSTER_SPEC task.index", "CLUSTER_SPEC cluster",
     "let Vertex AI start the program", read_vertex, nullptr},
    {"tf_config", nullptr, Group::kNode, "TF_CONFIG task.index", "TF_CONFIG cluster",
     "give every task the whole cluster in TF_CONFIG, or set RANK and WORLD_SIZE", read_tf_config,
     nullptr},
    {"sagemaker", nullptr, Group::kNode, "SM_CURRENT_HOST", "SM_HOSTS",
     "let SageMaker start the program", read_sagemaker, nullptr},
    {"aws-batch", nullptr, Group::kNode, "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES",
     "start the program as a multi-node parallel job", read_aws_batch, nullptr},
    {"k8s-indexed", nullptr, Group::kNode, "JOB_COMPLETION_INDEX", "WORLD_SIZE",
     "set WORLD_SIZE in the pod template to the number of completions", read_k8s_indexed,
     warn_k8s_alone},
};
constexpr const char* kAlone = "single";

struct Reading {
  const Family* family;
  Facts facts;
};

/// What DT_LAUNCHER asks for: a family, nobody (`alone`), or no choice at all.
struct Choice {
  const Family* family = nullptr;
  bool alone = false;
};

Result<Choice> read_choice(Variables& variables) {
  const std::string* name = variables.get("DT_LAUNCHER");
  if (name == nullptr) return Choice{};
  if (*name == kAlone || *name == "none") return Choice{nullptr, true};
  std::string known;
  for (const Family& family : kFamilies) {
    if (*name == family.name || (family.other_name != nullptr && *name == family.other_name)) {
      return Choice{&family, false};
    }
    known += std::string(family.name) + ", ";
    if (family.other_name != nullptr) known += std::string(family.other_name) + ", ";
  }
  return launch_error("unknown_launcher", variables.shown("DT_LAUNCHER") + "=" +
                                              config::quoted(*name) + "; expected one of " + known +
                                              kAlone);
}

std::string said(const Facts& facts) {
  std::string text;
  for (const Field field : {Field::kRank, Field::kWorldSize}) {
    if (facts.at(field)) text += (text.empty() ? "" : " ") + facts.at(field)->text();
  }
  return text;
}

Status partial_error(const Variables& variables, const Reading& reading) {
  const Facts& facts = reading.facts;
  const std::string rank = variables.shown(reading.family->rank_variable);
  const std::string size = variables.shown(reading.family->size_variable);
  std::string text = facts.intention;
  std::string missing = rank + " and " + size + " are not";
  if (facts.at(Field::kRank)) {
    text = facts.at(Field::kRank)->text() + " is set";
    missing = size + " is not";
  } else if (facts.at(Field::kWorldSize)) {
    text = facts.at(Field::kWorldSize)->text() + " is set";
    missing = rank + " is not";
  } else if (text.empty()) {
    text = std::string("DT_LAUNCHER asks for the variables of ") + reading.family->name;
  }
  return launch_error("partial", text + ", but " + missing + "; " + reading.family->how_to_launch);
}

/// A family that says only rank or only size must say the same as the complete one.
Status check_agreement(const Reading& partial, const Reading& chosen) {
  for (const Field field : {Field::kRank, Field::kWorldSize}) {
    const auto& one = partial.facts.at(field);
    const auto& other = chosen.facts.at(field);
    if (!one || one->value == other->value) continue;
    return launch_error("conflict",
                        format("%s, but %s; unset the stale one, or set DT_LAUNCHER=%s to use the "
                               "second",
                               one->text().c_str(), other->text().c_str(), chosen.family->name));
  }
  return {};
}

/// Whether two complete families that differ may be two launches, one inside the other.
bool may_be_nested(const Reading& inner, const Reading& outer) {
  if (inner.facts.nested || outer.family->group == Group::kNode) return true;
  if (inner.family->group == Group::kMpi && outer.family->group == Group::kMpi) return false;
  if (inner.family->group != Group::kProcess) return true;
  const int32_t inner_size = inner.facts.at(Field::kWorldSize)->value;
  // By hand, before srun or mpirun: then each task has the same rank, and the size is the step's,
  // or that of a program that runs alone.
  if (inner_size == 1 && inner.facts.launcher == "env") {
    // Ray's workers in a step: what a launcher writes also says where on which node.
    return outer.family->group == Group::kStep && inner.facts.at(Field::kLocalSize) &&
           inner.facts.at(Field::kNodeRank);
  }
  return inner_size != outer.facts.at(Field::kWorldSize)->value;
}

Status check_nesting(const Reading& chosen, const Reading& other) {
  if (may_be_nested(chosen, other)) return {};
  const char* name = chosen.facts.launcher == "env" ? "env" : chosen.family->name;
  const std::string both = format("%s (%s), but %s (%s)", said(chosen.facts).c_str(), name,
                                  said(other.facts).c_str(), other.family->name);
  if (chosen.facts.at(Field::kWorldSize)->value == 1) {
    return launch_error(
        "conflict",
        format("%s: each of the %d processes would be a job of its own; unset %s and %s, or start "
               "one process only, or set DT_LAUNCHER=%s to run so many jobs of one rank",
               both.c_str(), other.facts.at(Field::kWorldSize)->value,
               chosen.facts.at(Field::kRank)->variable.c_str(),
               chosen.facts.at(Field::kWorldSize)->variable.c_str(), name));
  }
  return launch_error(
      "conflict", format("%s; unset the stale ones (a rank exported before the launcher is the "
                         "same in all processes), or set DT_LAUNCHER=%s or DT_LAUNCHER=%s to say "
                         "which counts",
                         both.c_str(), name, other.family->name));
}

/// MPI_Init without a launcher of its own kind makes each process an MPI job of one rank.
Status check_singleton(Variables& variables, const Reading& chosen) {
  const Group group = chosen.family->group;
  if (!is_mpi_singleton(variables) || chosen.facts.value(Field::kWorldSize, 1) == 1) return {};
  if (group != Group::kMpi && group != Group::kStep) return {};
  return launch_error(
      "conflict",
      format("%s (%s), but OMPI_MCA_ess=singleton: MPI_Init of Open MPI did not find its launcher "
             "and made each process rank 0 of 1; start the program with mpirun of Open MPI or with "
             "srun --mpi=pmix, or set DT_LAUNCHER=%s to use dt beside such an MPI",
             said(chosen.facts).c_str(), chosen.family->name, chosen.family->name));
}

/// Facts of a process that nobody started as part of a job.
Facts alone() {
  Facts facts;
  const std::string variable = "no launcher";
  facts.at(Field::kRank) = NumberFact{0, variable};
  facts.at(Field::kWorldSize) = NumberFact{1, variable};
  facts.launcher = kAlone;
  return facts;
}

/// All on one node, or one alone.
void fill_one_node(Facts& facts) {
  const NumberFact& world_size = *facts.at(Field::kWorldSize);
  if (world_size.value == 1) {
    if (!facts.at(Field::kLocalRank)) {
      facts.at(Field::kLocalRank) = NumberFact{0, world_size.variable};
    }
    if (!facts.at(Field::kLocalSize)) {
      facts.at(Field::kLocalSize) = NumberFact{1, world_size.variable};
    }
  }
  if (facts.value(Field::kLocalSize, -1) != world_size.value) return;
  const std::string& variable = facts.at(Field::kLocalSize)->variable;
  if (!facts.at(Field::kNodeRank)) facts.at(Field::kNodeRank) = NumberFact{0, variable};
  if (!facts.at(Field::kNodeCount)) facts.at(Field::kNodeCount) = NumberFact{1, variable};
}

Status check_rendezvous(Facts& facts) {
  const NumberFact& world_size = *facts.at(Field::kWorldSize);
  if (world_size.value == 1) {
    facts.exchange = Exchange::kNone;
    return {};
  }
  const bool one_node = facts.value(Field::kLocalSize, -1) == world_size.value;
  if (!facts.master_addr && one_node) {
    facts.master_addr = TextFact{"127.0.0.1", facts.at(Field::kLocalSize)->variable};
  }
  const bool exchange = facts.exchange != Exchange::kNone && (facts.exchange_reachable || one_node);
  if (facts.by_convention && facts.exchange_reachable) facts.at(Field::kMasterPort).reset();
  if (facts.master_addr && facts.at(Field::kMasterPort)) {
    if (facts.exchange_reachable && !one_node) facts.token_exchange = facts.exchange;
    facts.exchange = Exchange::kNone;
    return {};
  }
  if (exchange) return {};
  if (!facts.no_address.empty()) return Status(Code::kConfig, facts.no_address);
  return no_rendezvous(facts.launcher, world_size.text(),
                       facts.master_addr ? facts.master_addr->value : std::string());
}

void warn_loopback(const Facts& facts, Variables& variables) {
  if (!facts.master_addr || facts.value(Field::kNodeCount, 1) < 2) return;
  const std::string& host = facts.master_addr->value;
  if (host != "localhost" && host != "::1" && host.substr(0, 4) != "127.") return;
  variables.warn(format("loopback_master_multi_node: %s=%s with %s: other hosts cannot reach it",
                        facts.master_addr->variable.c_str(), host.c_str(),
                        facts.at(Field::kNodeCount)->text().c_str()));
}

/// Fills blanks, but for what must be equal on all ranks or on none: the id, the attempt and the
/// exchange of the job.
void fill_but_identity(Facts& facts, Facts other) {
  other.job_id.reset();
  other.at(Field::kAttempt).reset();
  other.exchange = Exchange::kNone;
  facts.fill_blanks(other);
}

/// The launches of MPI and Slurm that the variables describe, without their addresses.
std::vector<Reading> outer_launches(Variables variables) {
  // dt run sets both for its ranks, and a family that needs an address and finds none there may
  // fail. What the agent and its ranks find must not differ.
  variables.replace("MASTER_ADDR", "127.0.0.1", "MASTER_ADDR");
  variables.replace("MASTER_PORT", "1", "MASTER_PORT");
  std::vector<Reading> launches;
  for (const Family& family : kFamilies) {
    if (family.group != Group::kMpi && family.group != Group::kStep) continue;
    Result<Facts> facts = family.read(variables);
    if (!facts.ok() || !facts.value().complete()) continue;
    launches.push_back({&family, std::move(facts).value()});
  }
  return launches;
}

/// "slurm 812.0 1/4"
std::string launch_text(const Family& family, const Facts& facts) {
  const std::string id = facts.job_id ? facts.job_id->value + " " : std::string();
  return format("%s %s%d/%d", family.name, id.c_str(), facts.value(Field::kRank, 0),
                facts.value(Field::kWorldSize, 1));
}

/// The own variables are complete but for the address: MASTER_ADDR and MASTER_PORT, unless they
/// come with the RANK and WORLD_SIZE of another launch. Malformed ones are an error only where
/// nothing else leads to rank 0, and a warning otherwise: such names are common (a Service "master"
/// of Kubernetes).
void fill_user_rendezvous(Facts& own, Variables& variables) {
  if (own.master_addr && own.at(Field::kMasterPort)) return;
  if (own.at(Field::kWorldSize)->value == 1) return;
  // Read here because DT_LAUNCHER=own leaves torch's family out.
  constexpr NumberRow kTorch[] = {rank_row(Field::kRank, "RANK"),
                                  size_row(Field::kWorldSize, "WORLD_SIZE")};
  Facts torch;
  const bool readable = read_numbers(variables, kTorch, torch).ok();
  if (readable && torch.complete() && !own.same_launch(torch)) return;
  Facts user;
  if (const Status status = read_user_rendezvous(variables, user); !status.ok()) {
    own.no_address = status.message();
    own.warnings.push_back(status.message() +
                           "; MASTER_ADDR and MASTER_PORT do not count: the launcher leads to "
                           "rank 0");
    return;
  }
  own.fill_rendezvous(user);
}

/// The own variables are complete: they win, and the launcher around them fills blanks.
Status complete_own(Facts& own, const std::vector<Reading>& others, Variables& variables) {
  if (own.launcher == "dt run" && !others.empty()) {
    const std::string inner = launch_inside_rank(variables);
    if (!inner.empty()) {
      return launch_error("conflict", inner + ", or set DT_LAUNCHER=own to be that rank of dt run");
    }
  }
  bool nested = false;  // the outer launches may number their processes otherwise
  for (const Reading& other : others) {
    if (own.same_launch(other.facts)) {
      // Of threads that are ranks, one has the numbers of its process, and the others do not.
      if (own.launcher == "config") {
        fill_but_identity(own, other.facts);
      } else if (!nested) {
        own.fill_blanks(other.facts);
      }
      nested = nested || other.facts.nested;
    } else if (!other.facts.complete()) {
      if (other.family->group == Group::kProcess) own.fill_blanks(other.facts);
    } else if (own.launcher != "config" &&  // a program that gives ranks to its threads means it
               (own.launcher != "dt run" || other.family->group == Group::kProcess)) {
      variables.warn(
          format("other_launcher: %s count; %s (%s) say otherwise. If that one started "
                 "this process, set DT_LAUNCHER=%s or unset the first",
                 said(own).c_str(), said(other.facts).c_str(), other.facts.launcher.c_str(),
                 other.family->name));
    }
  }
  return {};
}

/// Reads the own family and those that are asked for, from the innermost outwards.
Result<std::vector<Reading>> read_families(Variables& variables, const Choice& choice) {
  std::vector<Reading> readings;
  bool complete = false;
  for (const Family& family : kFamilies) {
    const bool own = family.group == Group::kOwn;
    const bool wanted = !choice.alone && (choice.family == nullptr || choice.family == &family);
    if (!wanted && !own) continue;
    if (complete && family.group == Group::kNode) continue;  // it describes what is around
    Result<Facts> facts = family.read(variables);
    if (!facts.ok()) {
      // What is inside counts; the own variables are the way out of a broken environment.
      if (complete) continue;
      return facts.status();
    }
    if (!wanted) {
      facts.value().at(Field::kRank).reset();
      facts.value().at(Field::kWorldSize).reset();
    }
    complete = complete || facts.value().complete();
    readings.push_back({&family, std::move(facts).value()});
  }
  return readings;
}

/// The complete family `chosen` with what the user and equal families add.
Result<Facts> combine(const std::vector<Reading>& readings, size_t chosen, const Facts& user) {
  const Reading& first = readings[chosen];
  Facts facts = readings.front().facts;  // the own one, which is not complete
  std::string launcher = first.facts.launcher;
  bool bare = first.facts.bare;
  facts.fill_rendezvous(user);
  facts.fill_blanks(first.facts);
  const Reading* inner = &first;  // the outermost one of this launch
  for (size_t i = chosen + 1; i < readings.size(); ++i) {
    const Reading& other = readings[i];
    if (!other.facts.complete()) continue;
    if (!first.facts.same_launch(other.facts)) {
      DT_TRY(check_nesting(*inner, other));
      continue;
    }
    inner = &other;
    // Such a launcher numbers its processes itself: that both numbers are equal on this rank does
    // not make them equal on the others.
    if (first.facts.nested) continue;
    facts.fill_blanks(other.facts);
    if (bare && !other.facts.bare) {
      launcher = other.facts.launcher;
      bare = false;
    }
  }
  facts.launcher = launcher;
  facts.settles_ranks = first.facts.settles_ranks;
  return facts;
}

Result<Facts> choose_alone(const std::vector<Reading>& readings, const Facts& user,
                           const Choice& choice, Variables& variables) {
  const Facts& own = readings.front().facts;
  Facts facts = alone();
  facts.job_id = own.job_id;
  facts.at(Field::kAttempt) = own.at(Field::kAttempt);
  facts.fill_rendezvous(own);  // kept for those who serve a store themselves
  facts.fill_rendezvous(user);
  if (choice.alone) return facts;
  for (const Family& family : kFamilies) {
    if (family.warn_alone != nullptr) family.warn_alone(variables);
  }
  return facts;
}

Result<Facts> choose(std::vector<Reading> readings, const Choice& choice, Variables& variables) {
  Facts own = readings.front().facts;
  if (own.complete()) {
    readings.erase(readings.begin());
    fill_user_rendezvous(own, variables);
    DT_TRY(complete_own(own, readings, variables));
    return own;
  }
  Facts user;
  const Status user_status = choice.alone ? Status() : read_user_rendezvous(variables, user);
  std::vector<const Reading*> partial;
  for (size_t i = 0; i < readings.size(); ++i) {
    const Reading& reading = readings[i];
    if (reading.facts.complete()) {
      DT_TRY(user_status);
      for (const Reading* each : partial) DT_TRY(check_agreement(*each, reading));
      if (choice.family == nullptr) DT_TRY(check_singleton(variables, reading));
      return combine(readings, i, user);
    }
    if (reading.facts.partial() || choice.family == reading.family) partial.push_back(&reading);
  }
  if (!partial.empty()) return partial_error(variables, *partial.front());
  if (!user_status.ok()) {
    variables.warn(user_status.message() + "; nobody needs it in a process that runs alone");
  }
  return choose_alone(readings, user, choice, variables);
}

}  // namespace

const char* exchange_name(Exchange exchange) {
  return exchange == Exchange::kPmi ? "pmi" : exchange == Exchange::kPmix ? "pmix" : "none";
}

std::span<const Family> families() { return kFamilies; }

Status no_rendezvous(const std::string& launcher, const std::string& size,
                     const std::string& address) {
  std::string text = size + ", but nobody names the address of rank 0";
  if (!address.empty()) {
    text = size + " and the address " + address + " are known, but not the port";
  }
  text +=
      "; set MASTER_ADDR and MASTER_PORT (or DT_MASTER_ADDR and DT_MASTER_PORT) to the host of "
      "rank 0 and a free port there, the same on all ranks";
  if (launcher == "openmpi") {
    text += ": mpirun -x MASTER_ADDR=... -x MASTER_PORT=... (without -x other hosts get neither)";
  }
  return launch_error("no_rendezvous", text);
}

std::string launches_around(const Variables& variables) {
  std::string all;
  for (const auto& [family, facts] : outer_launches(variables)) {
    all += (all.empty() ? "" : ";") + launch_text(*family, facts);
  }
  return all.empty() ? "none" : all;
}

std::string launch_inside_rank(Variables& variables) {
  const std::string* around = variables.get(kLaunchesAround);
  if (around == nullptr) return {};  // not in a rank of dt run, or of an older one
  for (const auto& [family, facts] : outer_launches(variables)) {
    // A rank may start its program by mpirun -n 1.
    if (facts.at(Field::kWorldSize)->value == 1) continue;
    const std::string entry = ";" + launch_text(*family, facts) + ";";
    if ((";" + *around + ";").find(entry) != std::string::npos) continue;
    return format(
        "this process (%s, %s) seems to have been started inside a rank of dt run, whose variables "
        "are still set; unset them before (in sh or bash: unset $%s)",
        said(facts).c_str(), family->name, kNamesSet);
  }
  return {};
}

Result<Facts> discover_facts(Variables& variables) {
  DT_TRY_VALUE(const Choice choice, read_choice(variables));
  DT_TRY_VALUE(std::vector<Reading> readings, read_families(variables, choice));
  DT_TRY_VALUE(Facts facts, choose(std::move(readings), choice, variables));
  fill_one_node(facts);
  DT_TRY(check_ranges(facts));
  DT_TRY(check_rendezvous(facts));
  for (const std::string& warning : facts.warnings) variables.warn(warning);
  warn_loopback(facts, variables);
  return facts;
}

Place make_place(const Facts& facts, const Variables& variables) {
  Place place;
  place.rank = facts.value(Field::kRank, 0);
  place.world_size = facts.value(Field::kWorldSize, 1);
  place.local_rank = facts.value(Field::kLocalRank, -1);
  place.local_size = facts.value(Field::kLocalSize, -1);
  place.node_rank = facts.value(Field::kNodeRank, -1);
  place.node_count = facts.value(Field::kNodeCount, -1);
  place.master_addr = facts.master_addr ? facts.master_addr->value : std::string();
  place.master_port = facts.value(Field::kMasterPort, 0);
  place.address_by_convention = facts.address_by_convention;
  place.port_taken = facts.port_taken;
  place.store_served = facts.store_served;
  place.job_id = facts.job_id ? facts.job_id->value : std::string();
  place.attempt = facts.value(Field::kAttempt, 0);
  place.exchange = facts.exchange;
  place.settles_ranks = facts.settles_ranks;
  place.token_exchange = facts.token_exchange;
  place.launcher = facts.launcher;
  place.warnings = variables.warnings();
  return place;
}

Result<Place> discover(const Environment& environment) {
  Variables variables(environment);
  DT_TRY_VALUE(const Facts facts, discover_facts(variables));
  return make_place(facts, variables);
}

int32_t store_port(const Place& place) {
  if (!place.port_taken || place.store_served) return place.master_port;
  constexpr uint32_t kFirst = 20000;
  constexpr uint32_t kCount = 12000;
  uint64_t hash = 14695981039346656037u;  // FNV-1a: equal on all machines, unlike std::hash
  const std::string key =
      place.master_addr + "\n" + std::to_string(place.master_port) + "\n" + place.job_id;
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return static_cast<int32_t>(kFirst + hash % kCount);
}

}  // namespace dt::launch
