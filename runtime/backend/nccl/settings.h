// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/nccl/api.h"
#include "base/status.h"
#include "config/config.h"

// From the table [nccl] of dt.toml to NCCL. NCCL reads its variables once, at first use, and they
// win over the fields of its config. So dt run gives them to the ranks it starts; a program that
// nobody of dt's started is only told what to export. All functions are pure.
namespace dt::nccl {

/// A variable that NCCL reads, as the settings want it.
struct Variable {
  std::string name;        ///< "NCCL_ALGO"
  std::string value;       ///< "Ring"
  std::string key;         ///< "nccl.algo", or "nccl.env"
  std::string source;      ///< of the key: "dt.toml:4"
  bool in_fields = false;  ///< Config carries it: the variable only matters where it says otherwise
  int32_t since = 0;       ///< of those: the oldest NCCL that obeys, 22700
};

class Settings {
 public:
  /// CONFIG: values that contradict each other, or a variable that dt does not leave to users, with
  /// the reason.
  static Result<Settings> read(const dt::Config& config);

  /// Borrows from this object.
  Config fields() const;
  /// All that are set, sorted by name; also those in fields().
  const std::vector<Variable>& variables() const { return variables_; }
  /// nccl.inherit: variables that are set already win.
  bool inherited_wins() const { return inherited_wins_; }
  /// nccl.setenv: this process's environment may be written.
  bool may_write() const { return may_write_; }

 private:
  Config fields_;
  std::string net_name_;
  std::vector<Variable> variables_;
  bool inherited_wins_ = false;
  bool may_write_ = false;
};

/// A variable of which the environment says something else.
struct Difference {
  Variable wanted;
  std::optional<std::string> inherited;  ///< absent: it is not set
};
std::vector<Difference> differences(const Settings& settings, const Environment& environment);

/// What is to be put into an environment, sorted by name: the differences, but for inherited
/// values where these win.
std::vector<Variable> to_set(const Settings& settings, const Environment& environment);

/// "export NCCL_ALGO=Ring NCCL_DEBUG_FILE='a b'": a line for a shell.
std::string export_line(const std::vector<Variable>& variables);

/// The inherited values that dt run replaces, for one warning: "NCCL_ALGO=Ring (nccl.algo,
/// dt.toml:4) replaces the inherited Tree; ...". Empty: none.
std::string replaced_text(const Settings& settings, const Environment& environment);

/// What dt_init does about its environment.
struct Plan {
  std::vector<Variable> write;  ///< by setenv(), where the settings allow it
  std::string warning;          ///< once, with the line to export; empty: nothing is missing
};
Plan plan_environment(const Settings& settings, const Environment& environment);

/// An inherited variable that dt does not get along with.
struct Obstacle {
  std::string text;    ///< "NCCL_COMM_ID=... is set: it ...; unset it"
  bool fatal = false;  ///< no communicator may be made
};
std::vector<Obstacle> obstacles(const Environment& environment);

/// Settings that this release of NCCL does not know and ignores without a word: "nccl.cta_policy
/// needs NCCL 2.27.0".
std::vector<std::string> ignored_by(const Settings& settings, int32_t version);

}  // namespace dt::nccl
